// SPDX-License-Identifier: Apache-2.0
#include "agent.h"

#include <grp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <utility>

#include "cuda_codes.h"
#include "log.h"
#include "passed_fd.h"
#include "service_manager.h"

namespace kvgpu::agent {

namespace {

using control::Type;
using std::chrono::milliseconds;

constexpr size_t MAX_CLIENTS = 1024;
constexpr milliseconds RETRY{250};  // between looks for a host that is not there
constexpr milliseconds RETRY_WITHOUT_DEVICE{2000};
constexpr size_t MAX_MESSAGE_BYTES = sizeof(control::FrameHeader) + control::MAX_PAYLOAD_BYTES;

}  // namespace

Agent::Agent(Options options)
    : options_(std::move(options)),
      link_(loop_, {.connected = [this] { on_connected(); },
                    .disconnected = [this] { on_disconnected(); },
                    .frame = [this](const Frame& frame) { on_host_frame(frame); },
                    .writable =
                        [this] {
                          set_reading(true);
                          link_has_room_ = true;
                        }}) {}

bool Agent::run(int signal_fd) {
  if (!loop_.open() || !loop_.add(signal_fd, EPOLLIN, [this](uint32_t) { stopping_ = true; })) {
    log("cannot start: %s", std::strerror(errno));
    return false;
  }
  if (!listen_for_clients()) return false;
  adopt_sessions();
  look_for_host();
  notify_ready();
  while (!stopping_) {
    loop_.run_once(next_timeout_ms());
    look_for_host();
    expire_waiting();
    if (!link_.is_connected() && region_) check_workers();
    pump_due_streams();
  }
  log("stopping; %zu client(s) keep their sessions", clients_.size());
  unlink(options_.socket_path.c_str());
  save();
  return true;
}

bool Agent::listen_for_clients() {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string& path = options_.socket_path;
  if (path.size() >= sizeof address.sun_path) {
    log("socket path %s is too long", path.c_str());
    return false;
  }
  std::memcpy(address.sun_path, path.c_str(), path.size());
  listener_ = UniqueFd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  unlink(path.c_str());  // left by an agent that was killed
  const bool ready =
      listener_ &&
      bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
      give_to_group(path) && listen(listener_.get(), SOMAXCONN) == 0 &&
      loop_.add(listener_.get(), EPOLLIN, [this](uint32_t) { accept_client(); });
  if (!ready) log("cannot listen on %s: %s", path.c_str(), std::strerror(errno));
  return ready;
}

bool Agent::give_to_group(const std::string& path) {
  const group* const entry = getgrnam(options_.group.c_str());
  if (entry == nullptr) {
    log("no group %s: only root may use the GPUs (groupadd --system %s)", options_.group.c_str(),
        options_.group.c_str());
    return chmod(path.c_str(), 0600) == 0;
  }
  gid_ = entry->gr_gid;
  return chown(path.c_str(), static_cast<uid_t>(-1), *gid_) == 0 && chmod(path.c_str(), 0660) == 0;
}

// What the socket's mode says, said again of who is there: a mode can be changed, and a descriptor
// can be handed on.
bool Agent::may_connect(int connection, uid_t uid) const {
  if (uid == 0 || uid == geteuid()) return true;
  if (!gid_) return false;
  ucred peer{};
  socklen_t length = sizeof peer;
  if (getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.gid == *gid_) {
    return true;
  }
  std::vector<gid_t> groups(NGROUPS_MAX);
  length = static_cast<socklen_t>(groups.size() * sizeof(gid_t));
  if (getsockopt(connection, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &length) != 0) return false;
  groups.resize(length / sizeof(gid_t));
  return std::ranges::find(groups, *gid_) != groups.end();
}

void Agent::adopt_sessions() {
  auto connections = take_stored_fds();
  for (const SavedSession& saved : load_sessions(options_.state_path, options_.boot_id)) {
    Process process = watch_process(saved.pid);
    if (!process.pidfd || process.start_ticks != saved.start_ticks) {
      log("session %u: process %d ended while no agent ran", saved.session, saved.pid);
      closes_.push_back(saved.session);
      continue;
    }
    Client& client = clients_.emplace_back();
    client.process = std::move(process);
    client.stage = Client::Stage::OPEN;
    client.session = saved.session;
    client.block_offset = saved.block_offset;
    watch_end_of(client);
    client.connection = std::move(connections[stored_name(client)]);
    if (client.connection) watch_connection(client);
    log("session %u: process %d adopted, %s its connection", saved.session, saved.pid,
        client.connection ? "with" : "without");
  }
}

void Agent::look_for_host() {
  if (link_.is_connected()) return;
  const std::string port = options_.port_path.empty() ? find_port() : options_.port_path;
  look_for_region(!port.empty());
  const bool is_region_missing = !region_ && !is_stream_form_;
  if ((is_region_missing || port.empty()) && !told_what_is_missing_) {
    told_what_is_missing_ = true;
    log("waiting: %s",
        is_region_missing ? region_problem_.c_str() : "no virtio-serial port org.kvgpu.0");
  }
  if (!is_region_missing && !port.empty()) link_.try_connect(port);
}

// Devices come and go while the VM runs.
void Agent::look_for_region(bool has_port) {
  if (options_.no_region) {
    region_problem_ = "this VM has no virtio-serial port org.kvgpu.0";
  } else {
    if (region_ && !is_same_file(region_->fd.get(), region_->path)) region_.reset();
    if (!region_)
      region_ = open_region(options_.region_path, options_.devices_path, &region_problem_);
  }
  is_stream_form_ = !region_ && has_port &&
                    (options_.no_region ||
                     (options_.region_path.empty() && !has_ivshmem_device(options_.devices_path)));
}

int Agent::next_timeout_ms() const {
  if (const auto look = next_stream_look()) {
    const auto left = std::chrono::ceil<milliseconds>(*look - Clock::now());
    return static_cast<int>(std::clamp(left, milliseconds{0}, RETRY).count());
  }
  if (!region_ && !link_.is_connected()) return static_cast<int>(RETRY_WITHOUT_DEVICE.count());
  if (!link_.is_connected()) return static_cast<int>(RETRY.count());
  const bool any_waits = std::ranges::any_of(clients_, [](const Client& client) {
    return client.stage == Client::Stage::HELD || client.stage == Client::Stage::ASKED;
  });
  return any_waits ? static_cast<int>(RETRY.count()) : -1;
}

void Agent::expire_waiting() {
  const auto now = Clock::now();
  for (Client& client : clients_) {
    if (now < client.waits_until) continue;
    if (client.stage == Client::Stage::HELD) {
      refuse(client, CUDA_ERROR_SYSTEM_NOT_READY, "kvgpud on the host does not answer");
    } else if (client.stage == Client::Stage::ASKED) {
      // Should it answer yet, on_opened() closes what nobody waits for.
      refuse(client, CUDA_ERROR_SYSTEM_NOT_READY,
             "kvgpud on the host has not opened a session within " +
                 std::to_string(options_.answer_limit.count()) +
                 " s: look at `kvgpu host status` and at kvgpud's log there, then start the "
                 "program again");
    }
  }
}

void Agent::accept_client() {
  UniqueFd connection(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!connection) return;
  ucred peer{};
  socklen_t length = sizeof peer;
  if (getsockopt(connection.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return;
  if (!may_connect(connection.get(), peer.uid)) {
    log("process %d refused: user %u is not in the group %s", peer.pid, peer.uid,
        options_.group.c_str());
    return;
  }
  if (clients_.size() >= MAX_CLIENTS) {
    log("process %d refused: %zu clients already", peer.pid, clients_.size());
    return;
  }
  Process process = watch_process(peer.pid);
  if (!process.pidfd) return;  // it has ended already
  Client& client = clients_.emplace_back();
  client.connection = std::move(connection);
  client.process = std::move(process);
  client.uid = peer.uid;
  watch_end_of(client);
  watch_connection(client);
}

void Agent::watch_connection(Client& client) {
  if (!loop_.add(client.connection.get(), link_.is_congested() ? 0u : EPOLLIN,
                 [this, &client](uint32_t) { read_client(client); })) {
    log("process %d cannot be heard: %s", client.process.pid, std::strerror(errno));
  }
}

std::string Agent::stored_name(const Client& client) {
  return "session-" + std::to_string(client.session);
}

void Agent::watch_end_of(Client& client) {
  // Not the connection's end alone: a forked child may hold it open long after the process.
  const int pidfd = client.process.pidfd.get();
  if (!loop_.add(pidfd, EPOLLIN, [this, &client](uint32_t) { drop_client(client, "ended"); })) {
    log("process %d cannot be watched: %s", client.process.pid, std::strerror(errno));
  }
}

void Agent::read_client(Client& client) {
  std::array<uint8_t, MAX_MESSAGE_BYTES + 1> message;
  const ssize_t n_bytes = recv(client.connection.get(), message.data(), message.size(), 0);
  if (n_bytes < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n_bytes <= 0) {
    drop_client(client, "disconnected");
    return;
  }
  const auto frame = decode(std::span(message).first(static_cast<size_t>(n_bytes)));
  if (!frame || !handle_client_frame(client, *frame)) {
    drop_client(client, "sent what is not allowed");
    return;
  }
  if (link_.is_congested()) set_reading(false);
}

bool Agent::handle_client_frame(Client& client, const Frame& frame) {
  switch (frame.type) {
    case Type::OPEN:
      return open_session(client, frame);
    case Type::KICK:
      if (client.stage == Client::Stage::ENDED) return true;  // CLOSED is on its way
      if (client.stage != Client::Stage::OPEN || frame.id != client.session) return false;
      if (client.stream) {
        pump_stream(client);
        return true;
      }
      // Not welcomed means that an earlier agent's successor waits: on_welcome kicks in its stead.
      if (welcomed_) link_.send(Frame{Type::KICK, client.session, {}});
      return true;
    case Type::PING:
      return send_to_client(client, Frame{Type::PONG, frame.id, {}});
    case Type::QUERY:
      return send_to_client(client, make_frame(Type::FACTS, frame.id, facts_));
    case Type::DEVICE_QUERY:
      return ask_of_device(client, frame);
    default:
      return false;
  }
}

bool Agent::open_session(Client& client, const Frame& frame) {
  const auto open = payload_as<control::Open>(frame);
  if (client.stage != Client::Stage::NEW || !open) return false;
  client.open = *open;
  client.visible.assign(frame.payload.begin() + sizeof *open, frame.payload.end());
  client.open.pid = static_cast<uint32_t>(client.process.pid);
  client.open.uid = client.uid;
  client.client_request = frame.id;
  client.waits_until = Clock::now() + HOLD;
  client.stage = Client::Stage::HELD;
  look_for_host();
  const bool may_change_form = std::ranges::none_of(clients_, [](const Client& other) {
    return other.stage == Client::Stage::ASKED || other.stream;
  });
  if (link_.is_connected() && may_change_form) look_for_region(true);
  if (!region_ && !is_stream_form_) {
    refuse(client, CUDA_ERROR_NO_DEVICE, region_problem_);
  } else if (!refusal_.empty()) {
    refuse(client, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, refusal_);
  } else if (welcomed_) {
    ask_host(client);
  }
  return true;
}

void Agent::ask_host(Client& client) {
  client.request = ++last_request_;
  client.stage = Client::Stage::ASKED;
  client.waits_until = Clock::now() + options_.answer_limit;
  control::Open open = client.open;
  open.features &= ~control::FEATURE_BYTE_STREAM;  // not the client's to say
  if (is_stream_form_) open.features |= control::FEATURE_BYTE_STREAM;
  if (!region_ || !region_->registers) open.features &= ~control::FEATURE_DOORBELL;
  Frame frame = make_frame(Type::OPEN, client.request, open);
  frame.payload.insert(frame.payload.end(), client.visible.begin(), client.visible.end());
  link_.send(frame);
}

bool Agent::send_to_client(Client& client, const Frame& frame,
                           std::initializer_list<int> fds_to_pass) {
  if (!client.connection) return false;
  auto bytes = encode(frame);
  iovec part{bytes.data(), bytes.size()};
  PassedFds passed;
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  passed.add_to(message, fds_to_pass);
  // A client that does not read its few messages is not waited for.
  return sendmsg(client.connection.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0;
}

void Agent::refuse(Client& client, int32_t cuda_error, std::string_view message) {
  log("process %d refused: %.*s", client.process.pid, static_cast<int>(message.size()),
      message.data());
  client.stage = Client::Stage::ENDED;
  send_to_client(client, make_failure(Type::REFUSED, client.client_request, cuda_error, message));
}

void Agent::drop_client(Client& client, const char* why) {
  if (client.stage == Client::Stage::OPEN) {
    log("session %u: process %d %s", client.session, client.process.pid, why);
    close_session(client.session);
  }
  if (client.session != 0) forget_fd(stored_name(client));
  // A client that is ASKED leaves no trace here: on_opened closes what nobody waits for.
  const bool had_session = client.stage == Client::Stage::OPEN;
  if (client.connection) loop_.remove(client.connection.get());
  loop_.remove(client.process.pidfd.get());
  clients_.remove_if([&client](const Client& other) { return &other == &client; });
  if (had_session) save();
}

void Agent::set_reading(bool reading) {
  for (const Client& client : clients_) {
    if (client.connection) loop_.set_events(client.connection.get(), reading ? EPOLLIN : 0u);
  }
}

}  // namespace kvgpu::agent
