//! The machine's memory as `nearfar topo` shows it: as text of at most 80 columns and as JSON (`nearfar.topo/2`).

pub mod json;
mod notes;
pub mod text;
