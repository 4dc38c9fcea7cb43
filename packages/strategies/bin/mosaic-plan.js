#!/usr/bin/env node
// This file exists before anything is built, so that npm links it even in a fresh clone.
import "../dist/cli.js";
