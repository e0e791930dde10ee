// SPDX-License-Identifier: Apache-2.0
// kvgpu-agentd: lets every CUDA process of this VM talk to kvgpud, and tells kvgpud when one is
// gone.
//
// Owns the virtio-serial port (it can be open in one process only), the clients' socket and the
// table of sessions. Trusts neither clients nor host: whatever they say is checked before use. One
// thread; everything that grows is bounded.
#pragma once

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device.h"
#include "event_loop.h"
#include "frames.h"
#include "host_link.h"
#include "process.h"
#include "state.h"
#include "stream_session.h"
#include "unique_fd.h"

namespace kvgpu::agent {

struct Options {
  std::string region_path;  // empty: look for the PCI device
  bool no_region = false;   // do not look: sessions of the byte-stream form
  std::string devices_path = "/sys/bus/pci/devices";
  std::string port_path;  // empty: look for the virtio-serial port
  std::string socket_path = control::GUEST_SOCKET;
  std::string state_path = "/run/kvgpu/agent.state";
  std::string group = "kvgpu";            // its members may use the VM's GPUs
  std::chrono::seconds answer_limit{60};  // of the host, for an OPEN; it gives a worker 30 s
  BootId boot_id{};
};

class Agent {
 public:
  explicit Agent(Options options);
  // Serves until it is told to stop; false if it cannot start.
  [[nodiscard]] bool run(int signal_fd);

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds HOLD{10};  // how long an OPEN waits for the host
  static constexpr std::chrono::seconds LOOK{1};
  static constexpr std::chrono::seconds BEAT_LIMIT{10};  // a worker beats once a second

  // One client process. After this agent's restart it may have no connection: a service manager
  // keeps it meanwhile, nobody else does. Then only its process is watched.
  struct Client {
    enum class Stage { NEW, HELD, ASKED, OPEN, ENDED };

    UniqueFd connection;
    Process process;
    uint32_t uid = 0;
    Stage stage = Stage::NEW;
    uint32_t client_request = 0;  // the number it chose
    uint32_t request = 0;         // ours: unique among clients
    uint32_t session = 0;         // 0 before OPEN
    // A DEVICE_QUERY that the host has not answered yet; 0: there is none.
    uint32_t device_query = 0;  // our number
    uint32_t client_query = 0;  // the client's
    uint64_t block_offset = 0;
    struct {
      uint64_t value;
      Clock::time_point changed_at, looked_at;
    } beat{};  // of its worker, looked at while the host is away
    control::Open open{};
    std::vector<uint8_t> visible;           // what follows it
    std::unique_ptr<StreamSession> stream;  // where the VM shares no memory with its host
    Clock::time_point waits_until;          // HELD or ASKED
  };

  [[nodiscard]] bool listen_for_clients();
  void adopt_sessions();
  void look_for_host();
  void look_for_region(bool has_port);
  int next_timeout_ms() const;
  void expire_waiting();

  [[nodiscard]] bool give_to_group(const std::string& path);
  [[nodiscard]] bool may_connect(int connection, uid_t uid) const;
  void accept_client();
  void read_client(Client& client);
  bool handle_client_frame(Client& client, const Frame& frame);
  bool open_session(Client& client, const Frame& frame);
  bool ask_of_device(Client& client, const Frame& frame);
  void on_device_answer(const Frame& frame);
  void watch_end_of(Client& client);
  void watch_connection(Client& client);
  static std::string stored_name(const Client& client);
  void drop_client(Client& client, const char* why);
  bool send_to_client(Client& client, const Frame& frame,
                      std::initializer_list<int> fds_to_pass = {});
  bool send_opened(Client& client, const Frame& frame, const control::Opened& opened);
  void refuse(Client& client, int32_t cuda_error, std::string_view message);
  void ask_host(Client& client);
  void set_reading(bool reading);

  void on_connected();
  void say_hello();
  void name_sessions();
  void check_workers();
  void on_disconnected();
  void on_host_frame(const Frame& frame);
  void on_welcome(const Frame& frame);
  void on_refused(const Frame& frame);
  void on_opened(const Frame& frame);
  void on_closed(const Frame& frame);

  // agent_streams.cpp: sessions of the byte-stream form.
  bool open_stream(Client& client, const control::Opened& opened);
  void on_stream_frame(const Frame& frame);
  void pump_stream(Client& client);
  void pump_due_streams();
  std::optional<Clock::time_point> next_stream_look() const;
  void close_session(uint32_t session);
  void send_pending_closes();
  void save();

  Client* find_by_request(uint32_t request);
  Client* find_by_session(uint32_t session);

  Options options_;
  std::optional<gid_t> gid_;  // of the group; empty: there is none
  EventLoop loop_;
  HostLink link_;
  std::optional<Region> region_;
  UniqueFd listener_;
  std::list<Client> clients_;     // a list: handlers hold references to elements
  std::vector<uint32_t> closes_;  // sessions to close as soon as the host listens
  bool welcomed_ = false;
  control::Facts facts_{};  // of the host; zeroes until it has sent them
  bool stopping_ = false;
  bool link_has_room_ = false;  // again: streams that waited for it go on
  // No region is there, and none is told to be: the port alone has to do. A device that cannot be
  // read is a mistake to be mended, not a reason to be slow.
  bool is_stream_form_ = false;
  bool told_what_is_missing_ = false;
  std::string region_problem_;  // why there is no region
  std::string refusal_;         // why the host refused HELLO; empty if it did not
  uint32_t last_request_ = 0;
};

}  // namespace kvgpu::agent
