//! Random numbers from the operating system.

use anyhow::{Result, anyhow};

/// Returns 64 random bits.
///
/// # Errors
/// The system provides no random numbers.
pub fn random_u64() -> Result<u64> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|error| anyhow!("no random numbers: {error}"))?;
    Ok(u64::from_le_bytes(bytes))
}

/// Returns forty random hexadecimal digits.
///
/// # Errors
/// The system provides no random numbers.
pub fn random_hex() -> Result<String> {
    let mut bytes = [0; 20];
    getrandom::fill(&mut bytes).map_err(|error| anyhow!("no random numbers: {error}"))?;
    Ok(slot_routing::NodeId::from_random(bytes).to_string())
}
