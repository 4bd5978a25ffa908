//! The changes that CLUSTER SETSLOT makes to the state of a slot.

/// A subcommand of CLUSTER SETSLOT. The node ids are the operator's text and have not been validated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SlotChange {
    /// Marks the slot as migrating to another node.
    Migrating {
        /// The id of the target node.
        to: String,
    },
    /// Marks the slot as imported from another node.
    Importing {
        /// The id of the source node.
        from: String,
    },
    /// Clears the migrating and importing marks.
    Stable,
    /// Assigns the slot to the node with this id.
    Node(String),
}

impl SlotChange {
    /// Parses the arguments of SETSLOT that follow the slot number.
    #[must_use]
    pub fn parse(words: &[&str]) -> Option<Self> {
        let (action, node) =
            (words.first()?.to_ascii_lowercase(), words.get(1).map(|node| (*node).to_owned()));
        match (action.as_str(), node) {
            ("migrating", Some(to)) => Some(Self::Migrating { to }),
            ("importing", Some(from)) => Some(Self::Importing { from }),
            ("node", Some(node)) => Some(Self::Node(node)),
            ("stable", _) => Some(Self::Stable),
            _ => None,
        }
    }

    /// Returns the subcommand as arguments that [`SlotChange::parse`] accepts.
    #[must_use]
    pub fn words(&self) -> Vec<&str> {
        match self {
            Self::Migrating { to } => vec!["MIGRATING", to],
            Self::Importing { from } => vec!["IMPORTING", from],
            Self::Node(node) => vec!["NODE", node],
            Self::Stable => vec!["STABLE"],
        }
    }
}
