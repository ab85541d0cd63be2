//! cache: the cache of [`nearfar_cache`], wired to this machine: [`tiers`] resolves which memory it is to have, [`serve`] runs it as a
//! server. Not here: the command line (`cli/cache`).

pub(crate) mod serve;
pub(crate) mod tiers;
