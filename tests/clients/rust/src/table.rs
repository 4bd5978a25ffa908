//! Records the cells of the table for docs/clients.md.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

use crate::{Feature, FeatureResult};

/// The table cells for one library, and the features that failed.
#[derive(Debug)]
pub(crate) struct ResultTable {
    client: &'static str,
    failed_features: Vec<String>,
}

impl ResultTable {
    pub(crate) fn new(client: &'static str) -> Self {
        Self { client, failed_features: Vec::new() }
    }

    /// Records a cell and, if scripts/clients-page requested it, writes a line for that script.
    pub(crate) fn record(&mut self, mode: &str, protocol: u8, feature: Feature, outcome: FeatureResult) {
        let feature = feature.name();
        let result = match outcome {
            Ok(None) => "yes",
            Ok(Some(why)) => why,
            Err(error) => {
                self.failed_features.push(format!("{mode}, RESP{protocol}, {feature}: {error}"));
                "failed"
            }
        };
        let Some(folder) = std::env::var_os("CLIENTS_TABLE") else { return };
        let file = PathBuf::from(folder).join("rust.jsonl");
        let mut file = File::options().create(true).append(true).open(file).expect("the folder is there");
        let client = self.client;
        let cell = format!(
            "{{\"client\":\"{client}\",\"mode\":\"{mode}\",\"protocol\":{protocol},\"feature\":\"{feature}\",\"result\":\"{result}\"}}\n"
        );
        file.write_all(cell.as_bytes()).expect("the file can be written to");
    }

    /// Panics if a feature failed, after all features have been recorded.
    pub(crate) fn assert_no_failures(self) {
        assert!(self.failed_features.is_empty(), "{}: {:#?}", self.client, self.failed_features);
    }
}
