// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// The parts of the private extension radixshmem_core._core; each adds its names to the module.
// radixshmem_core/_core.pyi says what they are.
#pragma once

#include <pybind11/pybind11.h>

namespace radixshmem::bindings {

void bind_hash(pybind11::module_& module);           // compute_hashes, hash_bytes
void bind_page_keys(pybind11::module_& module);      // fold_page_keys
void bind_slot_store(pybind11::module_& module);     // SlotStore, check_room
void bind_index_results(pybind11::module_& module);  // Cursor, and what calls return
void bind_index(pybind11::module_& module);          // Index, LAYOUT_VERSION
void bind_index_server(pybind11::module_& module);   // IndexPlan, IndexServer
void bind_verbs(pybind11::module_& module);          // VerbsDevice
void bind_peer_index(pybind11::module_& module);     // PeerIndex
void bind_peer_slots(pybind11::module_& module);     // PeerSlots
void bind_cluster(pybind11::module_& module);        // PeerTable, Directory, Responder, shard_map

}  // namespace radixshmem::bindings
