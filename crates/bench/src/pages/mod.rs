//! Results of benchmarks as text, pages and pictures: each has a document (the JSON that is saved) and its views.

pub mod balance;
mod comparison;
pub mod heap;
pub mod sim;
pub mod tiering;
pub mod vm;
