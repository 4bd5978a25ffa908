//! RDB files: saving, loading, cancelling, and the reader of `redoubt rdb`.

mod cancelling;
mod loading;
mod rdb_command;
mod saving;
mod saving_settings;
mod while_serving;
