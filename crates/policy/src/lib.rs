//! policy: see ARCHITECTURE.md.
