// SPDX-License-Identifier: Apache-2.0
// sd_notify(3), sd_listen_fds(3): the protocols, without libsystemd. All of it does nothing where
// no service manager listens.
#pragma once

#include <map>
#include <string>

#include "unique_fd.h"

namespace kvgpu::agent {

// Clients can connect from now on.
void notify_ready();

// Leaves a copy of FD with the service manager, which gives it to this service's next process. It
// forgets the copy by itself when the other end hangs up.
void store_fd(const std::string& name, int fd);
void forget_fd(const std::string& name);

// What an earlier process of this service has stored, by name.
std::map<std::string, UniqueFd> take_stored_fds();

}  // namespace kvgpu::agent
