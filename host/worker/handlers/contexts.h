// SPDX-License-Identifier: Apache-2.0
// What contexts and green contexts have in common: their place in the session's tables.
#pragma once

#include "kvgpu/calls.h"
#include "session.h"

namespace kvgpu::worker {

// A malformed request for a new context ends the session.
void check_new_context(Session& session, const Task& task, const wire::ContextRetain& body);
void add_context(Session& session, const Task& task, const wire::ContextRetain& body,
                 const std::shared_ptr<Context>& context);
// Out of the tables, with its streams, before it ends.
std::shared_ptr<Context> take_context(Session& session, wire::Handle handle);

}  // namespace kvgpu::worker
