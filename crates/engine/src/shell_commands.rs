//! Commands that the engine does not run itself: identifiers for the server process and the connections that run them.

/// Commands that the server process runs in place of a handler of the engine, while the caller's slots are locked
/// ([`crate::Shell`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "variants are named after the commands")]
pub enum ShellCommand {
    Acl(AclCommand),
    Bgrewriteaof,
    Bgsave,
    Cluster(ClusterCommand),
    ConfigGet,
    ConfigResetStat,
    ConfigRewrite,
    Info,
    Lastsave,
    MemoryDoctor,
    MemoryMallocStats,
    MemoryPurge,
    MemoryStats,
    Role,
    Wait,
    WaitAof,
}

/// Commands that may wait for something other than keys; the client's connection runs them and holds no locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "variants are named after the commands")]
pub enum NodeCommand {
    Cluster(ClusterCommand),
    ConfigSet,
    Debug(DebugCommand),
    /// EVAL in a debugging session (SCRIPT DEBUG).
    DebugScript,
    /// Runs the remaining commands of an EXEC, through [`crate::Dispatcher::resume_exec`].
    Exec,
    Failover,
    MemoryPurge,
    Migrate,
    Psync,
    Replconf,
    Replicaof,
    Save,
    Shutdown,
    Wait,
    WaitAof,
}

/// Subcommands of DEBUG that act on the process, its files or its links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "variants are named after the commands")]
pub enum DebugCommand {
    AofFlushSleep,
    ChangeReplId,
    ClientEviction,
    CloseLinkOnDrop,
    ClusterLink,
    ConfigRewriteForceAll,
    CrashAndRecover,
    DisableReconnection,
    DropPackets,
    FailTlsWrites,
    LoadAof,
    Log,
    Mallctl,
    MallctlStr,
    PauseCron,
    Reload,
    Restart,
    Segfault,
    Sleep,
}

/// Subcommands of ACL that need files or random numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "variants are named after the commands")]
pub enum AclCommand {
    GenPass,
    Load,
    Save,
}

/// Subcommands of CLUSTER that need the cluster state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "variants are named after the commands")]
pub enum ClusterCommand {
    AddSlots,
    AddSlotsRange,
    BumpEpoch,
    CancelSlotMigrations,
    CountFailureReports,
    DelSlots,
    DelSlotsRange,
    Failover,
    Failovers,
    FlushSlots,
    Forget,
    GetSlotMigrations,
    Info,
    Links,
    Meet,
    MigrateSlots,
    Migration,
    MyId,
    MyShardId,
    Nodes,
    Replicas,
    Replicate,
    Reset,
    SaveConfig,
    SetConfigEpoch,
    SetSlot,
    Shards,
    Slots,
    SyncSlots,
}
