//! probe: see ARCHITECTURE.md.
