//! Simulates RDB saves on a node that starts from its append-only file.
//!
//! At each start the RDB file is loaded into a separate engine and compared with the saves that it may contain.

use std::io::{self, Write as _};

use engine::{NoLog, NodeFlags};
use persistence::{Disk, SnapshotFile};
use replication::ReplPosition;
use snapshot_io::SnapshotState;

use super::NodeWorld;
use super::incarnation::RunningNode;
use super::invariants::NodeObservation;
use crate::clients;
use crate::disk::{OpenFile, SimDisk};
use crate::executor::LoadCommandForwarder;

const RDB_NAME: &str = "dump.rdb";

/// The RDB file on the disk and its possible contents.
pub(super) struct SimulatedSaves {
    disk: SimDisk,
    file: SnapshotFile<SimDisk>,
    /// The history at the last completed save, and at each later save. A later save failed, but its file may have been
    /// renamed into place.
    candidates: Vec<Vec<u8>>,
    /// Whether the first of the candidates is a completed save.
    is_first_complete: bool,
}

impl SimulatedSaves {
    pub(super) fn new(disk: &SimDisk) -> Self {
        let disk = disk.in_folder("data/");
        Self {
            file: SnapshotFile::new(disk.clone(), RDB_NAME),
            disk,
            candidates: Vec::new(),
            is_first_complete: false,
        }
    }
}

impl NodeWorld {
    /// Saves all data. With `serves_clients`, other events happen during the save.
    pub(super) fn save(&mut self, running_node: &mut RunningNode, serves_clients: bool) {
        let (state, at) = running_node.take_snapshot();
        self.trace(&format!("a save is cut at {}", at.offset));
        let mut history = running_node.log.lock().history.clone();
        history.truncate(at.offset.0 as usize);
        self.saves.candidates.push(history);
        let last = self.saves.candidates.len() - 1;
        match self
            .write_save(running_node, state, at, serves_clients)
            .and_then(|file| self.saves.file.commit(file))
        {
            Ok(()) => {
                self.trace("it is done");
                self.saves.candidates.drain(..last);
                self.saves.is_first_complete = true;
            }
            Err(error) => self.trace(&format!("it fails: {error}")),
        }
    }

    fn write_save(
        &mut self,
        running_node: &mut RunningNode,
        state: SnapshotState,
        position: ReplPosition,
        serves_clients: bool,
    ) -> io::Result<OpenFile> {
        let bytes = self.write_rdb(running_node, state, position, false, serves_clients)?;
        let mut file = self.saves.file.create_temp_file()?;
        for piece in bytes.chunks(4096) {
            file.write_all(piece)?;
        }
        Ok(file)
    }

    /// Checks the RDB file when the node starts, before any other event.
    pub(super) fn check_save(&mut self) {
        let wall = self.wall_time();
        for name in self.saves.file.remove_abandoned_temp_files() {
            self.trace(&format!("removed {name}"));
        }
        let found = self.saves.disk.read(RDB_NAME).ok().map(|input| {
            let mut data = clients::new_executor(Box::new(NoLog));
            let len = input.get_ref().len() as u64;
            let host = LoadCommandForwarder::with_time(wall);
            let loaded = data.loader(&host).replace_dataset(input, len, false, || true);
            let position = snapshot_io::replication_position(&loaded.map_err(|error| error.to_string())?);
            data.engine.settings.set_node_flag(NodeFlags::LOADING, false);
            let offset = position.map_or(0, |position| position.offset.0);
            Ok((offset, data.digest(wall)))
        });
        let histories = self.saves.candidates.clone();
        let digest = |history: &Vec<u8>| (history.len() as u64, self.reference_node.digest(history, wall));
        let may_be = histories.iter().map(digest).collect();
        let done = self.saves.is_first_complete;
        self.check_invariants(&NodeObservation::SaveFound {
            found_data: found,
            candidates: may_be,
            is_first_complete: done,
        });
    }
}
