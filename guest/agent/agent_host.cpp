// SPDX-License-Identifier: Apache-2.0
// What the agent does with the host's words; agent.cpp has the clients' side.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "agent.h"
#include "cuda_codes.h"
#include "kvgpu/device_report.h"
#include "log.h"
#include "service_manager.h"

namespace kvgpu::agent {

using control::Type;

void Agent::on_connected() {
  log("host connected%s", region_ ? ""
                                  : "; no kvgpu region (PCI 1af4:1110): sessions run over the "
                                    "port alone, slowly");
  refusal_.clear();
  say_hello();
}

void Agent::say_hello() {
  control::Hello hello{control::PROTOCOL_MAJOR, control::PROTOCOL_MINOR, control::FEATURES, {}};
  std::ranges::copy(options_.boot_id, hello.boot_id);
  link_.send(make_frame(Type::HELLO, 0, hello));
}

void Agent::on_disconnected() {
  log("host disconnected");
  welcomed_ = false;
  told_what_is_missing_ = false;
  set_reading(true);
  for (auto next = clients_.begin(); next != clients_.end();) {
    Client& client = *next++;
    client.beat = {};
    if (client.device_query != 0) {
      on_device_answer(make_failure(Type::REFUSED, client.device_query, CUDA_ERROR_SYSTEM_NOT_READY,
                                    "the connection with kvgpud on the host was lost"));
    }
    if (client.stream) {
      on_closed(make_failure(Type::CLOSED, client.session, CUDA_ERROR_UNKNOWN,
                             "the connection with kvgpud on the host was lost"));
      continue;
    }
    if (client.stage != Client::Stage::ASKED) continue;
    client.stage = Client::Stage::HELD;  // asked again when the host is back
    client.waits_until = Clock::now() + HOLD;
  }
}

// Sessions go on without kvgpud, but nobody else says that a worker has died meanwhile.
void Agent::check_workers() {
  const auto now = Clock::now();
  for (auto next = clients_.begin(); next != clients_.end();) {
    Client& client = *next++;
    if (client.stage != Client::Stage::OPEN || now - client.beat.looked_at < LOOK) continue;
    client.beat.looked_at = now;
    const auto seen = read_worker_state(*region_, client.block_offset);
    if (!seen || (seen->beat == 0 && !seen->ended)) continue;  // a host that does not beat
    if (!seen->ended && (client.beat.value != seen->beat || client.beat.value == 0)) {
      client.beat.value = seen->beat;
      client.beat.changed_at = now;
      continue;
    }
    if (!seen->ended && now - client.beat.changed_at < BEAT_LIMIT) continue;
    close_session(client.session);
    on_closed(make_failure(Type::CLOSED, client.session, CUDA_ERROR_UNKNOWN,
                           "its worker on the host has ended, and kvgpud there is away"));
  }
}

void Agent::on_host_frame(const Frame& frame) {
  if (control::is_stream_form(frame.type)) return on_stream_frame(frame);
  switch (frame.type) {
    case Type::WELCOME:
      return on_welcome(frame);
    case Type::REFUSED:
      return on_refused(frame);
    case Type::OPENED:
      return on_opened(frame);
    case Type::CLOSED:
      return on_closed(frame);
    case Type::DEVICE_REPORT:
      return on_device_answer(frame);
    case Type::PING:
      link_.send(Frame{Type::PONG, frame.id, {}});
      // It may be the first word of a kvgpud that took the port over too quickly to be noticed.
      return say_hello();
    case Type::PONG:
      return;
    case Type::FACTS:
      if (const auto facts = payload_as<control::Facts>(frame)) facts_ = *facts;
      return;
    default:
      log("frame of type %u from the host ignored", static_cast<unsigned>(frame.type));
  }
}

void Agent::on_welcome(const Frame& frame) {
  const auto welcome = payload_as<control::Welcome>(frame);
  if (!welcome) return log("WELCOME is too short: ignored");
  if (welcome->major != control::PROTOCOL_MAJOR) {
    refusal_ =
        "the host speaks kvgpu protocol " + std::to_string(welcome->major) + ", this guest " +
        std::to_string(control::PROTOCOL_MAJOR) + ": upgrade the " +
        (welcome->major > control::PROTOCOL_MAJOR ? "guest's kvgpu-guest" : "host's kvgpu-host");
    return log("%s", refusal_.c_str());
  }
  if (region_ && welcome->region_bytes > region_->size_bytes) {
    return log("WELCOME names a region larger than the device: ignored");
  }
  if (!std::exchange(welcomed_, true)) {
    log("welcomed by kvgpud, protocol %u.%u", welcome->major, welcome->minor);
  }
  name_sessions();
  send_pending_closes();
  save();
  for (Client& client : clients_) {
    if (client.stage == Client::Stage::HELD) ask_host(client);
    // A kick may have been lost with an earlier agent; one too many does no harm.
    if (client.stage == Client::Stage::OPEN && !client.stream) {
      link_.send(Frame{Type::KICK, client.session, {}});
    }
  }
}

void Agent::name_sessions() {
  std::vector<uint8_t> numbers;
  for (const Client& client : clients_) {
    if (client.stage != Client::Stage::OPEN) continue;
    const auto* bytes = reinterpret_cast<const uint8_t*>(&client.session);
    numbers.insert(numbers.end(), bytes, bytes + sizeof client.session);
  }
  link_.send(Frame{Type::SESSIONS, 0, std::move(numbers)});
}

void Agent::on_refused(const Frame& frame) {
  if (frame.id == 0) {
    refusal_ = failure_text(frame);
    log("refused by kvgpud: %s", refusal_.c_str());
    for (Client& client : clients_) {
      if (client.stage != Client::Stage::HELD) continue;
      refuse(client, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, refusal_);
    }
    return;
  }
  Client* client = find_by_request(frame.id);
  if (client == nullptr) return on_device_answer(frame);
  const auto failure = payload_as<control::Failure>(frame);
  refuse(*client, failure ? failure->cuda_error : CUDA_ERROR_SYSTEM_NOT_READY, failure_text(frame));
}

// Whoever waits gives up by itself, so there is no time limit here.
bool Agent::ask_of_device(Client& client, const Frame& frame) {
  if (client.device_query != 0 || !payload_as<control::DeviceQuery>(frame)) return false;
  const bool is_known = (facts_.features & control::FEATURE_DEVICE_QUERIES) != 0;
  if (!welcomed_ || !is_known) {
    return send_to_client(
        client, welcomed_ ? make_failure(Type::REFUSED, frame.id, CUDA_ERROR_NOT_SUPPORTED,
                                         "the host does not answer that: upgrade its kvgpu-host")
                          : make_failure(Type::REFUSED, frame.id, CUDA_ERROR_SYSTEM_NOT_READY,
                                         "kvgpud on the host does not answer"));
  }
  client.client_query = frame.id;
  client.device_query = ++last_request_;
  link_.send(Frame{Type::DEVICE_QUERY, client.device_query, frame.payload});
  return true;
}

void Agent::on_device_answer(const Frame& frame) {
  const auto asker = std::ranges::find_if(clients_, [&](const Client& client) {
    return client.device_query != 0 && client.device_query == frame.id;
  });
  if (asker == clients_.end()) return;  // it has ended meanwhile
  asker->device_query = 0;
  Frame answer = frame;
  answer.id = asker->client_query;
  send_to_client(*asker, answer);
}

void Agent::on_opened(const Frame& frame) {
  const auto opened = payload_as<control::Opened>(frame);
  if (!opened) return log("OPENED is too short: ignored");
  Client* client = find_by_request(frame.id);
  if (client == nullptr) {
    log("session %u: its process has ended meanwhile", opened->session);
    return close_session(opened->session);
  }
  if (!region_ && !open_stream(*client, *opened)) return close_session(opened->session);
  const uint64_t limit_bytes = region_ ? region_->size_bytes : opened->region_bytes;
  if (opened->block_bytes > limit_bytes ||
      opened->block_offset > limit_bytes - opened->block_bytes) {
    close_session(opened->session);
    return refuse(*client, CUDA_ERROR_SYSTEM_NOT_READY, "the host named a block out of the region");
  }
  client->stage = Client::Stage::OPEN;
  client->session = opened->session;
  client->block_offset = opened->block_offset;
  save();
  // Without a region the session's memory ends with this agent, and with it the session.
  if (region_) store_fd(stored_name(*client), client->connection.get());
  log("session %u: process %d, uid %u", client->session, client->process.pid, client->uid);
  if (!send_opened(*client, frame, *opened)) drop_client(*client, "does not take its answer");
}

bool Agent::send_opened(Client& client, const Frame& frame, const control::Opened& opened) {
  Frame answer = frame;
  answer.id = client.client_request;
  if (!region_) return send_to_client(client, answer, {client.stream->fd()});
  const bool rings = (opened.features & control::FEATURE_DOORBELL) != 0;
  return send_to_client(client, answer, {region_->fd.get(), rings ? region_->registers.get() : -1});
}

void Agent::on_closed(const Frame& frame) {
  Client* client = find_by_session(frame.id);
  if (client == nullptr) return;
  log("session %u: closed by the host: %s", frame.id, failure_text(frame).c_str());
  client->stage = Client::Stage::ENDED;
  client->stream.reset();
  send_to_client(*client, frame);
  if (!client->connection) drop_client(*client, "has no session left");
  save();
}

void Agent::close_session(uint32_t session) {
  closes_.push_back(session);
  if (welcomed_) send_pending_closes();
}

void Agent::send_pending_closes() {
  for (const uint32_t session : std::exchange(closes_, {})) {
    link_.send(Frame{Type::CLOSE, session, {}});
  }
}

void Agent::save() {
  std::vector<SavedSession> sessions;
  for (const Client& client : clients_) {
    if (client.stage != Client::Stage::OPEN) continue;
    // Process 0 is none: the next agent closes a session whose memory ends with this one.
    const bool outlives_us = client.stream == nullptr;
    sessions.push_back({client.session, outlives_us ? client.process.pid : 0,
                        outlives_us ? client.process.start_ticks : 0, client.block_offset});
  }
  // A session to close belongs to no process; process 0 is none, so the next agent closes it.
  for (const uint32_t session : closes_) sessions.push_back({session, 0, 0, 0});
  if (!save_sessions(options_.state_path, options_.boot_id, sessions)) {
    log("cannot write %s: %s", options_.state_path.c_str(), std::strerror(errno));
  }
}

Agent::Client* Agent::find_by_request(uint32_t request) {
  const auto found = std::ranges::find_if(clients_, [request](const Client& client) {
    return client.stage == Client::Stage::ASKED && client.request == request;
  });
  return found == clients_.end() ? nullptr : &*found;
}

Agent::Client* Agent::find_by_session(uint32_t session) {
  const auto found = std::ranges::find_if(clients_, [session](const Client& client) {
    return client.stage == Client::Stage::OPEN && client.session == session;
  });
  return found == clients_.end() ? nullptr : &*found;
}

}  // namespace kvgpu::agent
