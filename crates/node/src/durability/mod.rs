//! What outlives the process: snapshots of the data, the files they become, and loading them.
//!
//! [`snapshot`] cuts and walks the keyspace for whoever needs a whole copy of it (a save, a replica); [`saving`] is
//! when and where to; [`loading`] brings a copy back, on several threads ([`lanes`]). Work that goes on beside the
//! workers keeps their [`pace`].

pub(crate) mod lanes;
pub(crate) mod loading;
pub(crate) mod pace;
pub(crate) mod saving;
pub(crate) mod snapshot;
