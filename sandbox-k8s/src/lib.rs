//! Sandboxes on Kubernetes: one hardened Pod per session.

mod api;
mod carrier;
mod config;
mod connect;
mod error;
mod grammar;
mod handle;
mod image;
mod make;
mod names;
mod pod;
mod preflight;
mod provider;
mod pump;
mod stamp;
mod state;
mod toleration;
mod wait;

pub use config::{ImagePullPolicy, K8sConfig};
pub use grammar::{parse_image_pull_secrets, parse_node_selector};
pub use image::ImageReport;
pub use preflight::{Finding, Preflight};
pub use provider::K8sProvider;
pub use toleration::{TaintEffect, Toleration, TolerationOperator, parse_tolerations};
