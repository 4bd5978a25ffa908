//! How thoroughly files and payloads are validated.

use std::sync::atomic::{AtomicBool, Ordering};

use config::{Values, keys};
use persistence::{AcceptedVersions, InputChecks, ValidationDepth};

/// The parameters of the checks on files and payloads.
#[derive(Debug, Default)]
pub struct InputCheckSettings {
    /// Whether files and payloads of unknown versions are accepted (`rdb-version-check relaxed`).
    accepts_any_version: AtomicBool,
    /// Whether compact encodings in files and client payloads are fully validated (`sanitize-dump-payload`).
    validates_files: AtomicBool,
    validates_payloads: AtomicBool,
}

impl InputCheckSettings {
    pub(super) fn configure(&self, values: &Values) {
        self.accepts_any_version.store(values[keys::RDB_VERSION_CHECK] == "relaxed", Ordering::Relaxed);
        let (files, payloads) = match values[keys::SANITIZE_DUMP_PAYLOAD] {
            "yes" => (true, true),
            "clients" => (false, true),
            _ => (false, false),
        };
        self.validates_files.store(files, Ordering::Relaxed);
        self.validates_payloads.store(payloads, Ordering::Relaxed);
    }

    /// Returns the checks for files and data received from a master.
    #[must_use]
    pub fn for_files(&self) -> InputChecks {
        self.checks(&self.validates_files)
    }

    /// Returns the checks for payloads sent by clients (RESTORE).
    #[must_use]
    pub fn for_payloads(&self) -> InputChecks {
        self.checks(&self.validates_payloads)
    }

    fn checks(&self, validates: &AtomicBool) -> InputChecks {
        InputChecks {
            versions: if self.accepts_any_version.load(Ordering::Relaxed) {
                AcceptedVersions::Any
            } else {
                AcceptedVersions::Known
            },
            depth: if validates.load(Ordering::Relaxed) {
                ValidationDepth::Deep
            } else {
                ValidationDepth::HeadersOnly
            },
        }
    }
}
