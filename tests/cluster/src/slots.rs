//! Tests of slots: redirections, manual moves and atomic migrations.

mod manual_moves;
mod migration_clients;
mod migration_kills;
mod migrations;
mod redirections;
