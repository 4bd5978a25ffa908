//! The commands that are not the engine's to carry out: names that it gives the shell and the connections.

/// The commands that the shell carries out where the engine's own run, under whatever slots their caller holds
/// ([`crate::Shell`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShellCommand {
    /// One of ACL.
    Acl(AclCommand),
    /// BGREWRITEAOF
    Bgrewriteaof,
    /// BGSAVE
    Bgsave,
    /// One of CLUSTER.
    Cluster(ClusterCommand),
    /// CONFIG GET
    ConfigGet,
    /// CONFIG RESET STAT
    ConfigResetStat,
    /// CONFIG REWRITE
    ConfigRewrite,
    /// INFO
    Info,
    /// LASTSAVE
    Lastsave,
    /// MEMORY DOCTOR
    MemoryDoctor,
    /// MEMORY MALLOC-STATS
    MemoryMallocStats,
    /// MEMORY PURGE
    MemoryPurge,
    /// MEMORY STATS
    MemoryStats,
    /// ROLE
    Role,
    /// WAIT
    Wait,
    /// WAITAOF
    WaitAof,
}

/// The commands that wait for more than keys: a client's connection carries them out, while it holds nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeCommand {
    /// One of CLUSTER.
    Cluster(ClusterCommand),
    /// CONFIG SET
    ConfigSet,
    /// One of DEBUG.
    Debug(DebugCommand),
    /// EVAL under a debugger
    DebugScript,
    /// Carry out what is left of an EXEC, with [`crate::Dispatcher::resume_exec`].
    Exec,
    /// FAILOVER
    Failover,
    /// MEMORY PURGE
    MemoryPurge,
    /// MIGRATE
    Migrate,
    /// PSYNC and SYNC
    Psync,
    /// REPLCONF
    Replconf,
    /// REPLICAOF and SLAVEOF
    Replicaof,
    /// SAVE
    Save,
    /// SHUTDOWN
    Shutdown,
    /// WAIT
    Wait,
    /// WAITAOF
    WaitAof,
}

/// Those subcommands of DEBUG that are about the process, its files and its links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DebugCommand {
    /// DEBUG AOF-FLUSH-SLEEP
    AofFlushSleep,
    /// DEBUG CHANGE-REPL-ID
    ChangeReplId,
    /// DEBUG CLIENT-EVICTION
    ClientEviction,
    /// DEBUG CLOSE-CLUSTER-LINK-ON-PACKET-DROP
    CloseLinkOnDrop,
    /// DEBUG CLUSTERLINK
    ClusterLink,
    /// DEBUG CONFIG-REWRITE-FORCE-ALL
    ConfigRewriteForceAll,
    /// DEBUG CRASH-AND-RECOVER
    CrashAndRecover,
    /// DEBUG DISABLE-CLUSTER-RECONNECTION
    DisableReconnection,
    /// DEBUG DROP-CLUSTER-PACKET-FILTER
    DropPackets,
    /// DEBUG FORCE-TLS-WRITE-ERROR
    FailTlsWrites,
    /// DEBUG LOADAOF
    LoadAof,
    /// DEBUG LOG
    Log,
    /// DEBUG MALLCTL
    Mallctl,
    /// DEBUG MALLCTL-STR
    MallctlStr,
    /// DEBUG PAUSE-CRON
    PauseCron,
    /// DEBUG RELOAD
    Reload,
    /// DEBUG RESTART
    Restart,
    /// DEBUG SEGFAULT
    Segfault,
    /// DEBUG SLEEP
    Sleep,
}

/// Those subcommands of ACL that need files or chance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AclCommand {
    /// ACL GENPASS
    GenPass,
    /// ACL LOAD
    Load,
    /// ACL SAVE
    Save,
}

/// Those subcommands of CLUSTER that need to know the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClusterCommand {
    /// CLUSTER ADDSLOTS
    AddSlots,
    /// CLUSTER ADDSLOTSRANGE
    AddSlotsRange,
    /// CLUSTER BUMPEPOCH
    BumpEpoch,
    /// CLUSTER CANCELSLOTMIGRATIONS
    CancelSlotMigrations,
    /// CLUSTER COUNT-FAILURE-REPORTS
    CountFailureReports,
    /// CLUSTER DELSLOTS
    DelSlots,
    /// CLUSTER DELSLOTSRANGE
    DelSlotsRange,
    /// CLUSTER FAILOVER
    Failover,
    /// CLUSTER FAILOVERS
    Failovers,
    /// CLUSTER FLUSHSLOTS
    FlushSlots,
    /// CLUSTER FORGET
    Forget,
    /// CLUSTER GETSLOTMIGRATIONS
    GetSlotMigrations,
    /// CLUSTER INFO
    Info,
    /// CLUSTER LINKS
    Links,
    /// CLUSTER MEET
    Meet,
    /// CLUSTER MIGRATESLOTS
    MigrateSlots,
    /// CLUSTER MIGRATION
    Migration,
    /// CLUSTER MYID
    MyId,
    /// CLUSTER MYSHARDID
    MyShardId,
    /// CLUSTER NODES
    Nodes,
    /// CLUSTER REPLICAS and SLAVES
    Replicas,
    /// CLUSTER REPLICATE
    Replicate,
    /// CLUSTER RESET
    Reset,
    /// CLUSTER SAVECONFIG
    SaveConfig,
    /// CLUSTER SET-CONFIG-EPOCH
    SetConfigEpoch,
    /// CLUSTER SETSLOT
    SetSlot,
    /// CLUSTER SHARDS
    Shards,
    /// CLUSTER SLOTS
    Slots,
    /// CLUSTER SYNCSLOTS
    SyncSlots,
}
