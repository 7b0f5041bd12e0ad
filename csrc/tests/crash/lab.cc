// SPDX-License-Identifier: Apache-2.0
// Copyright The radixshmem authors
#include "tests/crash/lab.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "tests/crash/answers.h"

namespace radixshmem::crash {
namespace {

void call_fault_hook(FaultPoint point) {
  if (on_fault_point) on_fault_point(point);
}
void call_reader_hook(ReaderPoint point) {
  if (on_reader_point) on_reader_point(point);
}

std::shared_ptr<Session> attach(const std::string& name) {
  auto session = Session::attach(name, "", /*read_only=*/false);
  RADIX_CHECK(session.ok(), session.ok());
  return std::move(session).value();
}

}  // namespace

Path path_of(std::uint64_t name, std::size_t blocks) {
  Path path;
  BlockHash h = name * 1000;
  for (std::size_t i = 0; i < blocks; ++i) path.push_back(h = chain(h, i));
  return path;
}

Lab::Lab(Mutant mutant, const Options& options) : options_(options), board_(make_board()) {
  static int labs = 0;
  options_.name = "/radix_lab_" + std::to_string(::getpid()) + "_" + std::to_string(labs++);
  fault::active_mutant = mutant;
  fault::stress = options.stress;
  fault::hook = call_fault_hook;
  fault::reader_hook = call_reader_hook;
  auto server = IndexServer::claim(options_.name, 0600, -1);
  RADIX_CHECK(server.ok(), server.ok());
  server_ = std::move(server).value();
  auto session = server_->create(options_.plan, /*prefault=*/false);
  RADIX_CHECK(session.ok(), session.ok());
  server_session_ = std::move(session).value();
  writer_ = attach(options_.name);
  reader_ = attach(options_.name);
}

Lab::~Lab() {
  on_fault_point = nullptr;
  on_reader_point = nullptr;
  fault::active_mutant = Mutant::kNone;
  fault::stress = false;
  fault::hook = nullptr;
  fault::reader_hook = nullptr;
  reader_->close();
  writer_->close();
  server_->close();
  ::unlink(("/dev/shm" + options_.name + ".live").c_str());
  free_board(board_);
}

void Lab::put(Session& session, const Path& path) {
  auto there = session.query(path, {kMaskFull, false, /*update_recency=*/false});
  const std::uint32_t start = there.value().blocks;
  auto slots = session.allocate(static_cast<std::int64_t>(path.size() - start), Component::kFull);
  RADIX_CHECK(slots.value().size() == path.size() - start, slots.value().size());
  for (std::size_t i = 0; i < slots.value().size(); ++i) {
    write_slot(*board_, Component::kFull, slots.value()[i], path[start + i], ++generation_);
  }
  auto done = session.insert(path, slots.value(), start, true, Component::kFull);
  RADIX_CHECK(done.value().error == ErrorCode::OK, static_cast<int>(done.value().error));
}

void Lab::put_aux(Session& session, const Path& path, Component c) {
  const std::size_t width =
      c == Component::kMamba ? 1
                             : std::min<std::size_t>(path.size(), options_.plan.swa_window_blocks);
  auto slots = session.allocate(static_cast<std::int64_t>(width), c);
  RADIX_CHECK(slots.value().size() == width, slots.value().size());
  for (std::size_t i = 0; i < width; ++i) {
    write_slot(*board_, c, slots.value()[i], path[path.size() - width + i], ++generation_);
  }
  auto done = session.insert(path, slots.value(), 0, true, c);
  RADIX_CHECK(done.value().error == ErrorCode::OK, static_cast<int>(done.value().error));
}

Hit Lab::query(Session& session, const Path& path, std::uint32_t mask, bool lock) {
  auto answer = session.query(path, {mask, lock, /*update_recency=*/false});
  RADIX_CHECK(answer.ok(), answer.ok());
  return std::move(answer).value();
}

Hit Lab::query_aux(Session& session, const Path& path, Component c, bool lock) {
  const std::uint32_t mask = 1u << static_cast<std::uint32_t>(c);
  auto answer = session.query(path, {mask, lock, /*update_recency=*/false, Position{0}});
  RADIX_CHECK(answer.ok(), answer.ok());
  return std::move(answer).value();
}

std::uint32_t Lab::evict_all(Session& session, Component c) {
  return session.evict(session.tree().pool(c).size(), c).value();
}

std::vector<std::int32_t> Lab::take_and_spoil(Session& session, Component c) {
  auto slots = session.allocate(session.tree().pool(c).free_count(), c);
  for (const std::int32_t slot : slots.value()) {
    write_slot(*board_, c, slot, 0xdead0000 + static_cast<BlockHash>(slot), ++generation_);
  }
  return std::move(slots).value();
}

std::string Lab::wrong_bytes(const Hit& hit, const Path& path) {
  const auto look = [&](Component c, std::int32_t slot, std::size_t block) -> std::string {
    if (holds(read_slot(*board_, c, slot), c, path[block])) return {};
    return "slot " + std::to_string(slot) + " of pool " + std::to_string(static_cast<int>(c)) +
           " does not hold block " + std::to_string(block);
  };
  std::string wrong;
  for (std::uint32_t i = 0; i < hit.full_count && wrong.empty(); ++i) {
    wrong = look(Component::kFull, hit.full_slots[i], i);
  }
  for (std::size_t i = 0; i < hit.window.swa_slots.size() && wrong.empty(); ++i) {
    wrong = look(Component::kSwa, hit.window.swa_slots[i], hit.window.swa_start + i);
  }
  if (hit.window.mamba && wrong.empty()) {
    wrong = look(Component::kMamba, static_cast<std::int32_t>(*hit.window.mamba), hit.blocks - 1);
  }
  for (std::size_t i = 0; i < hit.window.aux_slots.size() && wrong.empty(); ++i) {
    if (hit.window.aux_slots[i] < 0) continue;
    wrong = look(aux_of(hit), hit.window.aux_slots[i], aux_start(hit) + i);
  }
  return wrong;
}

std::string Lab::first_violation() {
  auto found = server_session_->check(/*repair=*/false);
  if (!found) return found.error().message;
  return found.value().empty() ? std::string() : found.value().front();
}

bool Lab::die_at(FaultPoint point, const std::function<void(Session&)>& work, bool stress) {
  const pid_t child = ::fork();
  if (child == 0) {
    fault::stress = stress;
    on_fault_point = [point](FaultPoint now) {
      if (now == point) ::kill(::getpid(), SIGKILL);
    };
    const std::shared_ptr<Session> session = attach(options_.name);
    work(*session);
    ::_exit(1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

void Lab::release_quarantine() {
  for (int round = 0; round < 3; ++round) (void)server_->release_quarantine();
}

}  // namespace radixshmem::crash
