// SPDX-License-Identifier: Apache-2.0
// What the agent does for sessions of the byte-stream form; stream_session.cpp does their work.
#include <algorithm>
#include <utility>

#include "agent.h"
#include "cuda_codes.h"
#include "log.h"

namespace kvgpu::agent {

using control::Type;

bool Agent::open_stream(Client& client, const control::Opened& opened) {
  if ((opened.features & control::FEATURE_BYTE_STREAM) == 0) {
    refuse(client, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
           "this VM has no kvgpu device (PCI 1af4:1110), and the host serves none without: upgrade "
           "the host's kvgpu-host, or add the device with `kvgpu vm xml --from`");
    return false;
  }
  client.stream =
      StreamSession::make(opened, {.send = [this](const Frame& frame) { link_.send(frame); },
                                   .is_congested = [this] { return link_.is_congested(); }});
  if (client.stream) return true;
  refuse(client, CUDA_ERROR_OUT_OF_MEMORY, "the VM has no memory for the session's buffers");
  return false;
}

void Agent::on_stream_frame(const Frame& frame) {
  Client* const client = find_by_session(frame.id);
  if (client == nullptr || !client->stream) return;  // of a session that has ended meanwhile
  client->stream->on_frame(frame);
  pump_stream(*client);
}

void Agent::pump_stream(Client& client) {
  if (!client.stream) return;
  client.stream->pump();
  if (client.stream->failure().empty()) return;
  const std::string why = "the byte-stream form was broken: " + client.stream->failure();
  close_session(client.session);
  on_closed(make_failure(Type::CLOSED, client.session, CUDA_ERROR_UNKNOWN, why));
}

// Streams that wait for the link's room, or whose time has come.
void Agent::pump_due_streams() {
  const bool all = std::exchange(link_has_room_, false);
  const auto now = Clock::now();
  for (auto next = clients_.begin(); next != clients_.end();) {
    Client& client = *next++;
    if (!client.stream) continue;
    const auto look = client.stream->next_look();
    if (all || (look && *look <= now)) pump_stream(client);
  }
}

std::optional<Agent::Clock::time_point> Agent::next_stream_look() const {
  std::optional<Clock::time_point> next;
  for (const Client& client : clients_) {
    if (!client.stream) continue;
    const auto look = client.stream->next_look();
    if (look && (!next || *look < *next)) next = look;
  }
  return next;
}

}  // namespace kvgpu::agent
