"""What everything runs on: errors and messages, devices, threads and processes, files that are
written whole or not at all."""
