//! The agent's metrics, declared in one place.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::clock::now;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Outcome {
    /// A value from a closed set; see each metric's help.
    pub outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Call {
    /// `allocate` or `prestart`.
    pub call: &'static str,
}

/// How long calls take, in seconds: from half a millisecond to half a minute.
#[derive(Clone, Debug)]
pub struct Seconds(Family<Call, Histogram, fn() -> Histogram>);

impl Default for Seconds {
    fn default() -> Self {
        Self(Family::new_with_constructor(|| {
            Histogram::new(exponential_buckets(0.0005, 2.0, 17))
        }))
    }
}

impl Seconds {
    fn register(&self, registry: &mut Registry) {
        registry.register(
            "call_seconds",
            "Time that Allocate and PreStartContainer took, by call",
            self.0.clone(),
        );
    }

    /// Records the duration of a call that began at `began`.
    pub(crate) fn since(&self, call: &'static str, began: std::time::Instant) {
        let took = began.elapsed().as_secs_f64();
        self.0.get_or_create(&Call { call }).observe(took);
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct XidLabels {
    /// The GPU, or the instance that reported it.
    pub gpu: String,
    /// NVIDIA's number.
    pub code: u64,
    /// An action of `--xid-actions`.
    pub action: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ProfileLabels {
    /// The profile, and how it was selected.
    pub profile: String,
    /// Hash of the configuration's text.
    pub hash: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct MpsDevice {
    pub gpu: String,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
pub struct Tenant {
    pub gpu: String,
    pub namespace: String,
    pub pod: String,
    pub container: String,
}

macro_rules! declared {
    ($($field:ident: $kind:ty = $name:literal $help:literal;)*) => {
        /// All metrics; clones share the values.
        #[derive(Clone, Debug, Default)]
        pub struct Metrics {
            /// Durations of the two calls of a container's start.
            pub seconds: Seconds,
            $(pub $field: $kind,)*
        }

        impl Metrics {
            fn register_all(&self, registry: &mut Registry) {
                self.seconds.register(registry);
                $(registry.register($name, $help, self.$field.clone());)*
            }
        }
    };
}

declared! {
    prestart: Family<Outcome, Counter> = "prestart"
        "PreStartContainer calls: accepted, served (accepted before), untouched (not ours), refused, failed";
    allocate: Counter = "allocate"
        "Allocate calls answered";
    steer: Family<Outcome, Counter> = "steer"
        "GetPreferredAllocation calls: steered to a waiting pod's devices, or unsteered";
    register: Family<Outcome, Counter> = "register"
        "Registrations with the kubelet: done, failed";
    node_writes: Family<Outcome, Counter> = "node_writes"
        "Writes of inventory or condition: done, failed";
    audit_differences: Counter = "audit_differences"
        "Containers that see another MIG instance than the one in their allocation";
    collected: Counter = "collected"
        "Names whose spec and directory were collected";
    accepted: Gauge = "accepted"
        "Accepted shares";
    damaged_shares: Gauge = "damaged_shares"
        "Accepted shares that cannot be read back; their pods count with what their annotations say";
    checkpoint_lost: Gauge = "checkpoint_lost"
        "Running shares that the kubelet's checkpoint does not know";
    foreign_device_ids: Gauge = "foreign_device_ids"
        "Device ids of the agent's resources that another device plugin registered or allocated";
    driver_missing: Gauge = "driver_missing"
        "1 while the agent cannot open the driver and waits for it, 0 else";
    unhealthy_gpus: Gauge = "sick_gpus"
        "GPUs out of service until the driver says that they are well";
    profile_error: Gauge = "profile_error"
        "1 while the node's profile cannot be used and the last good one stays, 0 else";
    profile: Family<ProfileLabels, Gauge> = "profile"
        "1 for the node's profile with the hash of the configuration that was read";
    profile_applied: Gauge = "profile_applied_timestamp_seconds"
        "When the node's profile last began to hold on every GPU; 0: not yet";
    changing_gpus: Gauge = "changing_gpus"
        "GPUs whose mode changes";
    switches: Family<Outcome, Counter> = "switches"
        "Changes of GPUs' modes: done, failed (tried again), waits (for a reset of the GPU), given-up (not free in time)";
    xids: Family<XidLabels, Counter> = "xids"
        "XIDs that the driver reported, and what each asked for";
    mps_up: Family<MpsDevice, Gauge> = "mps_daemon_up"
        "1 while the MPS daemon of this GPU serves, else 0";
    mps_restarts: Family<MpsDevice, Gauge> = "mps_daemon_restarts"
        "How often the MPS daemon of this GPU was started again";
    mps_clients: Family<Tenant, Gauge> = "mps_clients"
        "MPS clients of this container; each has the container's cap for itself";
    mps_used: Family<Tenant, Gauge> = "mps_used_bytes"
        "GPU memory that the MPS clients of this container hold together";
}

impl Metrics {
    /// The metrics, and a registry that shows them.
    pub fn registered() -> (Self, Registry) {
        let metrics = Self::default();
        let mut registry = Registry::with_prefix("aliquot_device_plugin");
        metrics.initialize_outcomes();
        metrics.register_all(&mut registry);
        (metrics, registry)
    }

    /// Creates every outcome at 0, so that the first event of its kind is an increase.
    fn initialize_outcomes(&self) {
        for (family, outcomes) in [
            (
                &self.prestart,
                &["accepted", "served", "refused", "failed"][..],
            ),
            (&self.register, &["done", "failed"]),
            (&self.node_writes, &["done", "failed"]),
            (&self.switches, &["done", "failed", "waits", "given-up"]),
        ] {
            for &outcome in outcomes {
                drop(family.get_or_create(&Outcome { outcome }));
            }
        }
    }

    pub(crate) fn count_xid(&self, gpu: &str, code: u64, action: &'static str) {
        let gpu = gpu.to_owned();
        self.xids
            .get_or_create(&XidLabels { gpu, code, action })
            .inc();
    }

    /// Publishes which configuration was read, which of its profiles is in use, and whether it was
    /// just applied.
    pub(crate) fn set_profile(&self, profile: Option<&str>, hash: Option<u64>, applied: bool) {
        let profile = profile.unwrap_or_default().to_owned();
        let hash = hash.map_or_else(String::new, |hash| format!("{hash:016x}"));
        let known = ProfileLabels { profile, hash };
        self.profile.clear();
        self.profile.get_or_create(&known).set(1);
        if applied {
            self.profile_applied
                .set(i64::try_from(now()).unwrap_or(i64::MAX));
        }
    }
}

pub(crate) fn set_count(gauge: &Gauge, number: usize) {
    gauge.set(i64::try_from(number).unwrap_or(i64::MAX));
}

pub(crate) fn count(family: &Family<Outcome, Counter>, outcome: &'static str) {
    family.get_or_create(&Outcome { outcome }).inc();
}
