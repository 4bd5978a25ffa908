//! Tests of RDB files: saving, loading, cancelling, and the `redoubt rdb` command.

mod cancelling;
mod loading;
mod rdb_command;
mod saving;
mod saving_settings;
mod while_serving;
