//! lab-plugin: forwards.
