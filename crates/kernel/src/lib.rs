//! kernel: see ARCHITECTURE.md.
