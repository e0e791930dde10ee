// SPDX-License-Identifier: Apache-2.0
// The driver as programs of these tests call it: by name, and done at the first error.
#pragma once

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

static void* library;

static void* entry(const char* name) {
  void* address = dlsym(library, name);
  if (address == NULL) {
    fprintf(stderr, "no %s\n", name);
    exit(1);
  }
  return address;
}

static void check(const char* what, int result) {
  if (result == 0) return;
  fprintf(stderr, "%s: CUDA error %d\n", what, result);
  exit(1);
}
