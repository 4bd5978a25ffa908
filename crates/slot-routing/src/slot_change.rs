//! The changes that CLUSTER SETSLOT makes to the state of a slot.

/// A subcommand of CLUSTER SETSLOT. The node ids are the operator's text and have not been validated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SlotChange {
    /// Marks the slot as migrating to another node.
    Migrating {
        /// The id of the target node.
        target: String,
    },
    /// Marks the slot as imported from another node.
    Importing {
        /// The id of the source node.
        source: String,
    },
    /// Clears the migrating and importing marks.
    Stable,
    /// Assigns the slot to the node with this id.
    AssignTo(String),
}

impl SlotChange {
    /// Parses the arguments of SETSLOT that follow the slot number.
    #[must_use]
    pub fn parse(arguments: &[&str]) -> Option<Self> {
        let (action, node) =
            (arguments.first()?.to_ascii_lowercase(), arguments.get(1).map(|node| (*node).to_owned()));
        match (action.as_str(), node) {
            ("migrating", Some(to)) => Some(Self::Migrating { target: to }),
            ("importing", Some(from)) => Some(Self::Importing { source: from }),
            ("node", Some(node)) => Some(Self::AssignTo(node)),
            ("stable", _) => Some(Self::Stable),
            _ => None,
        }
    }

    /// Returns the subcommand as arguments that [`SlotChange::parse`] accepts.
    #[must_use]
    pub fn to_arguments(&self) -> Vec<&str> {
        match self {
            Self::Migrating { target: to } => vec!["MIGRATING", to],
            Self::Importing { source: from } => vec!["IMPORTING", from],
            Self::AssignTo(node) => vec!["NODE", node],
            Self::Stable => vec!["STABLE"],
        }
    }
}
