//! Grants as JSON: one flat object, ours or a Go program's.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::grant::reject;
use crate::{
    DeviceClass, DeviceClassGrant, DeviceGrant, DeviceRule, Error, Grant, GrantKind, HostPath, LibraryPathGrant,
    MountGrant, NodePath, Purpose, Reason, Result,
};

/// Every field a grant can have. Go writes absent texts as empty ones.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wire {
    #[serde(alias = "Kind")]
    kind: GrantKind,
    #[serde(alias = "Purpose")]
    purpose: Purpose,
    #[serde(default, alias = "Source", skip_serializing_if = "String::is_empty")]
    source: String,
    #[serde(default, alias = "Target", skip_serializing_if = "String::is_empty")]
    target: String,
    #[serde(default, alias = "ReadOnly", skip_serializing_if = "std::ops::Not::not")]
    read_only: bool,
    #[serde(default, alias = "DeviceClass", skip_serializing_if = "String::is_empty")]
    device_class: String,
    #[serde(
        default,
        alias = "DeviceAllow",
        deserialize_with = "crate::wire::null_is_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    device_allow: Vec<String>,
}

impl Wire {
    fn forbid(&self, fields: &[&'static str]) -> Result<()> {
        for field in fields {
            let given = match *field {
                "source" => &self.source,
                "target" => &self.target,
                "device_class" => &self.device_class,
                "read_only" if self.read_only => "true",
                "device_allow" => self.device_allow.first().map_or("", String::as_str),
                _ => "",
            };
            let there = !given.is_empty() || (*field == "device_allow" && !self.device_allow.is_empty());
            if there {
                return Err(reject(field, given, Reason::ForbiddenField));
            }
        }
        Ok(())
    }

    fn source(&self) -> Result<HostPath> {
        if self.source.is_empty() {
            return Err(reject("source", "", Reason::MissingField));
        }
        HostPath::new(&self.source)
    }

    fn target(&self) -> Result<Option<NodePath>> {
        if self.target.is_empty() {
            return Ok(None);
        }
        // As strict as a source: it stands beside one in a unit file.
        let target = HostPath::new(&self.target).map_err(|error| error.with_field("target"))?;
        Ok(Some(target.to_node_path()))
    }
}

impl TryFrom<Wire> for Grant {
    type Error = Error;

    fn try_from(wire: Wire) -> Result<Self> {
        let purpose = wire.purpose;
        let grant = match wire.kind {
            GrantKind::Mount => {
                wire.forbid(&["device_class"])?;
                let rules = wire.device_allow.iter().map(|rule| DeviceRule::parse(rule));
                Self::Mount(MountGrant {
                    purpose,
                    source: wire.source()?,
                    target: wire.target()?,
                    read_only: wire.read_only,
                    device_allow: rules.collect::<Result<_>>()?,
                })
            }
            GrantKind::Device if wire.source.is_empty() => {
                if wire.device_class.is_empty() {
                    return Err(reject("source", "", Reason::MissingField));
                }
                wire.forbid(&["target", "read_only", "device_allow"])?;
                Self::DeviceClass(DeviceClassGrant { purpose, class: DeviceClass::new(&wire.device_class)? })
            }
            GrantKind::Device => {
                wire.forbid(&["device_class", "device_allow", "read_only"])?;
                Self::Device(DeviceGrant { purpose, source: wire.source()?, target: wire.target()? })
            }
            GrantKind::LibraryPath => {
                wire.forbid(&["device_class", "device_allow"])?;
                if !wire.read_only {
                    return Err(reject("read_only", "false", Reason::MissingField));
                }
                Self::LibraryPath(LibraryPathGrant { purpose, source: wire.source()?, target: wire.target()? })
            }
        };
        grant.validate()?;
        Ok(grant)
    }
}

impl From<&Grant> for Wire {
    fn from(grant: &Grant) -> Self {
        let target = match grant {
            Grant::Mount(MountGrant { target, .. })
            | Grant::Device(DeviceGrant { target, .. })
            | Grant::LibraryPath(LibraryPathGrant { target, .. }) => target.as_ref(),
            Grant::DeviceClass(_) => None,
        };
        let (class, rules) = match grant {
            Grant::Mount(mount) => (None, &mount.device_allow[..]),
            Grant::DeviceClass(class) => (Some(class.class.as_str()), &[][..]),
            Grant::Device(_) | Grant::LibraryPath(_) => (None, &[][..]),
        };
        Self {
            kind: grant.kind(),
            purpose: grant.purpose(),
            source: grant.source().map_or_else(String::new, |source| source.as_str().to_owned()),
            target: target.map_or_else(String::new, |t| String::from_utf8_lossy(t.as_bytes()).into_owned()),
            read_only: grant.is_read_only(),
            device_class: class.unwrap_or_default().to_owned(),
            device_allow: rules.iter().map(|rule| rule.as_str().to_owned()).collect(),
        }
    }
}

impl Serialize for Grant {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Wire::from(self).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Grant {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::try_from(Wire::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ErrorKind, lib_dir_mounts, node_path};
    use serde_json::json;

    fn parse(value: serde_json::Value) -> Result<Grant> {
        Grant::try_from(serde_json::from_value::<Wire>(value).unwrap())
    }

    #[test]
    fn legal_combinations_round_trip() {
        let class = || DeviceClass::new("char-input").unwrap();
        let host = |path| HostPath::new(path).unwrap();
        let mut all = Vec::new();
        for p in [Purpose::HostMount, Purpose::NvidiaDevice, Purpose::NvidiaHelperBin, Purpose::AmdSysfs] {
            all.extend([Grant::mount(p, host("/srv")), Grant::read_only_mount(p, host("/srv"))]);
        }
        for p in [Purpose::HostDevice, Purpose::NvidiaDevice, Purpose::AmdDevice] {
            all.push(Grant::device(p, host("/dev/kvm")).with_target(node_path!("/dev/kvm2")));
        }
        all.extend([Purpose::HostDevice, Purpose::NvidiaDevice].map(|p| Grant::device_class(p, class())));
        all.extend([Purpose::NvidiaLibDir, Purpose::NvidiaI386LibDir].map(|p| Grant::library_path(p, host("/lib"))));
        all.push(Grant::Mount(MountGrant {
            purpose: Purpose::HostMount,
            source: host("/dev/infiniband"),
            target: Some(node_path!("/dev/ib")),
            read_only: false,
            device_allow: vec![DeviceRule::Class(class()), DeviceRule::parse("/dev/infiniband/rdma_cm").unwrap()],
        }));
        for grant in all {
            grant.validate().unwrap();
            let json = serde_json::to_string(&grant).unwrap();
            assert_eq!(serde_json::from_str::<Grant>(&json).unwrap(), grant, "{json}");
        }
    }

    #[test]
    fn rejected_combinations() {
        use Reason::*;
        let table = [
            (json!({"kind": "mount", "purpose": "host-mount"}), "source", MissingField),
            (json!({"kind": "mount", "purpose": "host-device", "source": "/a"}), "purpose", PurposeMismatch),
            (json!({"kind": "mount", "purpose": "nvidia-lib-dir", "source": "/a"}), "purpose", PurposeMismatch),
            (json!({"kind": "mount", "purpose": "amd-device", "source": "/a"}), "purpose", PurposeMismatch),
            (
                json!({"kind": "mount", "purpose": "host-mount", "source": "/a", "device_class": "char-x"}),
                "device_class",
                ForbiddenField,
            ),
            (json!({"kind": "mount", "purpose": "host-mount", "source": "/a:b"}), "source", Character),
            (json!({"kind": "mount", "purpose": "host-mount", "source": "/a", "target": "/b%"}), "target", Character),
            (json!({"kind": "mount", "purpose": "host-mount", "source": "/a", "target": "b"}), "target", NotAbsolute),
            (json!({"kind": "mount", "purpose": "host-mount", "source": "/a", "target": "/"}), "target", NodeRoot),
            (json!({"kind": "mount", "purpose": "host-mount", "source": "/"}), "target", NodeRoot),
            (
                json!({"kind": "device", "purpose": "host-device", "source": "/dev/x", "target": "/"}),
                "target",
                NodeRoot,
            ),
            (
                json!({"kind": "mount", "purpose": "host-mount", "source": "/dev/x", "device_allow": ["/etc"]}),
                "device_allow",
                NotADevice,
            ),
            (
                json!({"kind": "mount", "purpose": "host-mount", "source": "/dev/x", "device_allow": ["x"]}),
                "device_allow",
                Unknown,
            ),
            (json!({"kind": "device", "purpose": "host-device"}), "source", MissingField),
            (json!({"kind": "device", "purpose": "host-device", "source": "/etc/x"}), "source", NotADevice),
            (json!({"kind": "device", "purpose": "host-mount", "source": "/dev/x"}), "purpose", PurposeMismatch),
            (
                json!({"kind": "device", "purpose": "host-device", "source": "/dev/x", "device_class": "char-x"}),
                "device_class",
                ForbiddenField,
            ),
            (
                json!({"kind": "device", "purpose": "host-device", "source": "/dev/x", "read_only": true}),
                "read_only",
                ForbiddenField,
            ),
            (
                json!({"kind": "device", "purpose": "host-device", "source": "/dev/x", "device_allow": ["char-x"]}),
                "device_allow",
                ForbiddenField,
            ),
            (
                json!({"kind": "device", "purpose": "host-device", "device_class": "char-x", "target": "/x"}),
                "target",
                ForbiddenField,
            ),
            (
                json!({"kind": "device", "purpose": "host-device", "device_class": "char-x", "read_only": true}),
                "read_only",
                ForbiddenField,
            ),
            (json!({"kind": "device", "purpose": "amd-device", "device_class": "char-x"}), "purpose", PurposeMismatch),
            (json!({"kind": "device", "purpose": "host-device", "device_class": "x"}), "device_class", Unknown),
            (json!({"kind": "library-path", "purpose": "nvidia-lib-dir", "source": "/lib"}), "read_only", MissingField),
            (json!({"kind": "library-path", "purpose": "nvidia-lib-dir", "read_only": true}), "source", MissingField),
            (
                json!({"kind": "library-path", "purpose": "host-mount", "source": "/lib", "read_only": true}),
                "purpose",
                PurposeMismatch,
            ),
        ];
        for (wire, field, reason) in table {
            let error = parse(wire.clone()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidGrant, "{wire}");
            assert_eq!((error.field(), error.reason()), (Some(field), Some(reason)), "{wire}");
            assert!(serde_json::from_value::<Grant>(wire).is_err());
        }
    }

    #[test]
    fn unknown_names_and_fields_are_errors() {
        for wire in [
            json!({"kind": "Mount", "purpose": "host-mount", "source": "/a"}),
            json!({"kind": "mount", "purpose": "host_mount", "source": "/a"}),
            json!({"kind": "mount", "purpose": "host-mount", "source": "/a", "options": "rw"}),
            json!({"kind": "mount", "source": "/a"}),
        ] {
            assert!(serde_json::from_value::<Grant>(wire).is_err());
        }
    }

    #[test]
    fn what_go_wrote_is_accepted() {
        let go = r#"{"Kind":"device","Purpose":"host-device","Source":"","Target":"","ReadOnly":false,"DeviceClass":"char-input"}"#;
        let class = DeviceClass::new("char-input").unwrap();
        assert_eq!(serde_json::from_str::<Grant>(go).unwrap(), Grant::device_class(Purpose::HostDevice, class));
        let go = r#"{"Kind":"mount","Purpose":"host-mount","Source":"/dev/infiniband","Target":"","ReadOnly":false,"DeviceClass":"","DeviceAllow":["char-infiniband_verbs"]}"#;
        let Grant::Mount(mount) = serde_json::from_str::<Grant>(go).unwrap() else { panic!() };
        assert_eq!(mount.device_allow[0].as_str(), "char-infiniband_verbs");
        let json = serde_json::to_string(&Grant::mount(Purpose::HostMount, HostPath::new("/a").unwrap())).unwrap();
        assert_eq!(json, r#"{"kind":"mount","purpose":"host-mount","source":"/a"}"#);
    }

    #[test]
    fn library_directories_are_numbered() {
        let dirs = ["/b", "/a", "/b"].map(|dir| HostPath::new(dir).unwrap());
        let mounts = lib_dir_mounts(&dirs, false);
        let shown: Vec<_> = mounts.iter().map(|m| format!("{} {} {}", m.index, m.host_dir, m.container_dir)).collect();
        assert_eq!(shown, ["0 /b /run/host-nvidia/0", "1 /a /run/host-nvidia/1"]);
        assert_eq!(lib_dir_mounts(&dirs, true)[1].container_dir, node_path!("/run/host-nvidia-i386/1"));
        let go = r#"{"Index":0,"HostDir":"/b","ContainerDir":"/run/host-nvidia/0"}"#;
        assert_eq!(serde_json::from_str::<LibDirMount>(go).unwrap(), mounts[0]);
        assert_eq!(
            serde_json::from_str::<LibDirMount>(&serde_json::to_string(&mounts[1]).unwrap()).unwrap(),
            mounts[1]
        );
    }

    use crate::LibDirMount;
}
