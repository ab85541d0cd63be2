//! Entry for fuzz targets: the texts that others write.

use crate::annotations::{Annotations, Classes, Request};
use crate::bundle::{Config, Edits};
use crate::policy::MemoryPolicy;
use crate::{claims, intel, runtime, verify};

/// Arbitrary bytes as each text that others write: a configuration, an annotation, numa_maps, a runtime's output.
pub fn texts(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Ok(config) = Config::parse(&text) {
        let _ = (config.name(), config.cpuset(), config.policy());
        let _ = Request::read(&config.annotations(), Some("name"), &Classes::new());
        if let Ok(edited) = Edits::default().apply(&text) {
            assert!(Config::parse(&edited).is_ok_and(|again| again == config));
        }
    }
    let annotations: Annotations = [("nearfar.io/memory".to_string(), text.to_string())].into();
    let _ = Request::read(&annotations, None, &Classes::new());
    let _ = text.parse::<intel::IntelPolicy>();
    let (name, value) = text.split_once('=').unwrap_or((&text, ""));
    if let Some(id) = claims::ShareId::of_variable(name) {
        assert_eq!(id.variable(), name);
    }
    if let Ok(share) = value.parse::<claims::Share>() {
        assert_eq!(share.to_string().parse(), Ok(share));
    }
    claims::fuzz(&text);
    if let Some((policy, rest)) = MemoryPolicy::from_numa_maps(&text) {
        let _ = verify::judge(&text, &policy);
        assert!(text.ends_with(rest));
    }
    let _ = (runtime::policy_modes(&text), runtime::State::parse(&text));
}
