// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
//
// What a worker does to the whole index now and then. What goes wrong is recorded on the board.
#pragma once

#include "node/session.h"
#include "tests/crash/board.h"

namespace radixshmem::crash {

void reset(Board& board, Session& session, Dice& dice);
// Makes the table as small as may be, so that it grows again.
void shrink(Board& board, Session& session);
void repair(Board& board, Session& session);
// Breaks one segment under the lock and under the intent of a rebuild, then repairs.
void damage(Board& board, Session& session, Dice& dice);
// Forks a child that does nothing for a while with what it inherited.
void fork_idle_child(Board& board, Session& session);

}  // namespace radixshmem::crash
