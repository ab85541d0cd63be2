//! Shared by every command of nearfar, whichever binary or service it is part of: exit statuses, output and messages,
//! progress, interruption, notifications to the service manager, the confinement of servers, and the machine a command works on.
//!
//! No arguments are parsed here: the binaries do that, and pass values down.
#![forbid(unsafe_code)]

pub mod disturbance;
pub mod exit;
pub mod interrupt;
pub mod json;
pub mod machine;
pub mod movers;
pub mod moving;
pub mod new_file;
pub mod number;
pub mod output;
pub mod probed;
pub mod progress;
pub mod sandbox;
pub mod spread;
pub mod supervisor;
pub mod terminal;
pub mod topo;
pub mod usage;
pub mod weighing;
