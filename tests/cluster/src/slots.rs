//! Slots: redirections, manual moves and migrations.

mod manual_moves;
mod migration_clients;
mod migration_kills;
mod migrations;
mod redirections;
