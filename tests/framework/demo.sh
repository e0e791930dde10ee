#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# demo.sh: see demo.py. Expects `make repo` and the test programs to be built.
cd "$(dirname "$0")/../.."
PYTHONPATH=packaging/python:tests exec .venv/bin/python -P -m framework.demo "$@"
