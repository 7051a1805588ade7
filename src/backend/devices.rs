//! Which devices there are, and why a backend is not among them.

use super::cpu::CpuBackend;
use super::{Backend, Caps};
use crate::{Error, Result};

/// One backend of this build, or why it cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Name to choose it by.
    pub name: &'static str,
    /// What it can do, or the reason why it is not there.
    pub caps: std::result::Result<Caps, String>,
}

/// Every backend that lrmoe knows, best first.
pub fn devices() -> Vec<Device> {
    let absent = |name, reason: &str| Device { name, caps: Err(reason.to_owned()) };
    vec![
        absent("cuda", "not part of this version of lrmoe"),
        absent("wgpu", "not part of this version of lrmoe"),
        Device { name: "cpu", caps: Ok(CpuBackend::new().caps().clone()) },
    ]
}

/// A choice of device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The device.
    pub name: &'static str,
    /// The better ones that were refused, with the reason.
    pub refused: Vec<(&'static str, String)>,
}

/// `auto`: the best device there is. A name: that one.
///
/// # Errors
/// [`Error::Argument`] for an unknown name, [`Error::Unsupported`] for a backend that is not there.
pub fn choose(name: &str) -> Result<Choice> {
    let mut refused = Vec::new();
    for device in devices() {
        match (name == "auto" || name == device.name, device.caps) {
            (true, Ok(_)) => return Ok(Choice { name: device.name, refused }),
            (true, Err(why)) if name != "auto" => {
                return Err(Error::Unsupported { what: format!("device `{name}`"), why });
            }
            (true, Err(why)) => refused.push((device.name, why)),
            (false, _) => {}
        }
    }
    let names: Vec<_> = devices().into_iter().map(|device| device.name).collect();
    Err(Error::argument("device", name, format!("auto, {}", names.join(", "))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_explains_what_it_refused() {
        let choice = choose("auto").unwrap();
        assert_eq!(choice.name, "cpu");
        assert_eq!(choice.refused.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["cuda", "wgpu"]);
        assert_eq!(choose("cpu").unwrap().refused, []);
        assert!(matches!(choose("cuda"), Err(Error::Unsupported { .. })));
        assert!(matches!(choose("tpu"), Err(Error::Argument { .. })));
    }
}
