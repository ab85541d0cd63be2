//! The machine's memory as `nearfar topo` shows it: as text as wide as the terminal and as JSON (`nearfar.topo/2`).

pub mod json;
mod notes;
pub mod text;
