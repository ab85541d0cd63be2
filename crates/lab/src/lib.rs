//! lab: see ARCHITECTURE.md.
