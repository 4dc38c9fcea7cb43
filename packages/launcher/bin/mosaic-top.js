#!/usr/bin/env node
// Here before anything is built, so that npm links it even in a fresh clone.
import "../dist/top.js";
