// SPDX-License-Identifier: Apache-2.0
// A case of this program in a process of its own, and what the two say to each other. CUDA does not
// survive a fork: the other process is a new one that runs the one case, which is skipped
// otherwise.
#pragma once

#include <sys/types.h>

#include <cstddef>

class OtherProcess {
 public:
  explicit OtherProcess(const char* case_name);
  ~OtherProcess();
  OtherProcess(const OtherProcess&) = delete;
  OtherProcess& operator=(const OtherProcess&) = delete;
  int socket() const { return socket_; }
  // The case must have passed.
  void finish();

 private:
  int socket_ = -1;
  pid_t pid_ = -1;
};

// In the case of the other process.
int socket_to_first_process();

void send_bytes(int socket, const void* bytes, size_t n);
void receive_bytes(int socket, void* bytes, size_t n);
void send_descriptor(int socket, int descriptor);
int receive_descriptor(int socket);

template <class T>
void send(int socket, const T& value) {
  send_bytes(socket, &value, sizeof value);
}

template <class T>
T receive(int socket) {
  T value;
  receive_bytes(socket, &value, sizeof value);
  return value;
}
