//! The schema of the configuration: every key that [`config`](crate::config) reads, with its
//! description. [`read`](crate::read()) checks against it, and editors get it as JSON schema.

use serde_json::json;

use crate::config;
use crate::gpu_selector::Pci;
use crate::mode::{MAX_MPS_CLIENTS, MAX_REPLICAS};
use crate::schema::ValueSchema::{
    Flag, Keys, List, Map, Modes, OneOrMore, Scaling, Text, Whole, Words,
};
use crate::schema::{KeySchema, ModeSchema, ValueSchema, optional, required};
use crate::text_format::{self, TextFormat};

/// The version of the configuration.
const VERSION: TextFormat = TextFormat {
    expectation: config::VERSION,
    pattern: "^aliquot\\.dev/v1alpha1$",
    matches: |text| text == config::VERSION,
};

/// The whole file.
pub(crate) const CONFIG: ValueSchema = Keys(&[
    required("apiVersion", Text(VERSION), "The version of this format."),
    optional(
        "default",
        Text(text_format::NAME),
        "The profile of nodes without another one. Without it they get vgpu on all GPUs.",
    ),
    required(
        "profiles",
        Map(text_format::NAME, &PROFILE),
        "The profiles by name.",
    ),
]);

const PROFILE: ValueSchema = Keys(&[
    optional(
        "nodeSelector",
        Map(text_format::LABEL_KEY, &Text(text_format::LABEL_VALUE)),
        "Nodes with all these labels get the profile, unless a profile label names another.",
    ),
    optional("gpus", List(&RULE, 0), "The modes of selected GPUs."),
    optional(
        "rest",
        MODES,
        "The mode of every GPU that no entry of gpus selects.",
    ),
    optional(
        "transition",
        TRANSITION,
        "What happens to pods on a GPU whose mode changes.",
    ),
]);

const TRANSITION: ValueSchema = Keys(&[
    optional(
        "policy",
        Words(&["wait", "evict"]),
        "Wait until the GPU's pods have ended, or evict them.",
    ),
    optional(
        "timeout",
        Text(text_format::TIME),
        "The GPU keeps its old mode if it is not free by then. Without it there is no limit.",
    ),
]);

const RULE: ValueSchema = Modes {
    common: &[
        required("select", SELECT, "The GPUs that every key here selects."),
        optional(
            "optional",
            Flag,
            "Whether the entry may select no GPU of a node.",
        ),
        optional(
            "reserve",
            List(&RESERVE, 1),
            "What of each GPU is reserved for pods of some namespaces.",
        ),
    ],
    kinds: KINDS,
    name_alone: false,
};

const RESERVE: ValueSchema = Keys(&[
    optional(
        "profile",
        Text(text_format::MIG_PROFILE),
        "Instances of this MIG profile. Without it the whole GPU, with all its instances.",
    ),
    optional(
        "count",
        Whole { least: 1, most: 7 },
        "The number of instances. Without it one.",
    ),
    required(
        "namespaces",
        List(&Text(text_format::NAMESPACE), 1),
        "The namespaces whose pods may use them.",
    ),
]);

const SELECT: ValueSchema = Keys(&[
    optional("all", Flag, "Every GPU. Only true, and alone."),
    optional(
        "index",
        OneOrMore(&Whole {
            least: 0,
            most: 1023,
        }),
        "NVML's index.",
    ),
    optional(
        "uuid",
        OneOrMore(&Text(text_format::UUID)),
        "The GPU's uuid.",
    ),
    optional(
        "pci",
        OneOrMore(&Text(Pci::FORMAT)),
        "The GPU's PCI address, or the PCI device id of its model.",
    ),
    optional(
        "product",
        OneOrMore(&Text(text_format::GLOB)),
        "The driver's name of the model; * matches any text, ? any character.",
    ),
]);

const MODES: ValueSchema = Modes {
    common: &[],
    kinds: KINDS,
    name_alone: true,
};

const KINDS: &[ModeSchema] = &[
    ModeSchema {
        name: "vgpu",
        fields: VGPU,
    },
    ModeSchema {
        name: "exclusive",
        fields: &[RENAME],
    },
    ModeSchema {
        name: "timeslice",
        fields: TIMESLICE,
    },
    ModeSchema {
        name: "mps",
        fields: MPS,
    },
    ModeSchema {
        name: "mig",
        fields: MIG,
    },
    ModeSchema {
        name: "unmanaged",
        fields: &[],
    },
];

const ON: ValueSchema = Modes {
    common: &[],
    kinds: &[
        ModeSchema {
            name: "vgpu",
            fields: VGPU,
        },
        ModeSchema {
            name: "timeslice",
            fields: TIMESLICE,
        },
        ModeSchema {
            name: "mps",
            fields: MPS,
        },
    ],
    name_alone: true,
};

const RENAME: KeySchema = optional(
    "rename",
    Text(text_format::RESOURCE),
    "The resource that pods request, instead of the default one.",
);
const STRICT: KeySchema = optional(
    "strict",
    Flag,
    "Reject a container that requests more than one.",
);

const VGPU: &[KeySchema] = &[
    optional(
        "split",
        Whole {
            least: 1,
            most: MAX_REPLICAS,
        },
        "The number of shares of the GPU. Without it the node's deviceSplitCount.",
    ),
    optional(
        "memoryScaling",
        Scaling,
        "Allocatable memory, as a multiple of the GPU's. Without it the node's deviceMemoryScaling.",
    ),
    optional(
        "graphics",
        Flag,
        "Containers also get the driver's graphics libraries (OpenGL, Vulkan, OptiX), whose use is not limited.",
    ),
    optional(
        "video",
        Flag,
        "Containers also get the driver's video encoding and decoding libraries, whose use is not limited.",
    ),
];

const TIMESLICE: &[KeySchema] = &[
    required(
        "replicas",
        Whole {
            least: 2,
            most: MAX_REPLICAS,
        },
        "The number of containers that take turns.",
    ),
    RENAME,
    STRICT,
];

const MPS: &[KeySchema] = &[
    required(
        "replicas",
        Whole {
            least: 1,
            most: MAX_MPS_CLIENTS,
        },
        "The number of containers at once.",
    ),
    RENAME,
    STRICT,
    optional(
        "memory",
        Words(&["even", "full"]),
        "Memory of a container that requests none: an equal part, or all.",
    ),
    optional("threads", Words(&["even", "full"]), "The same for compute."),
    optional(
        "computeMode",
        Words(&["exclusive-process", "default"]),
        "The GPU's compute mode; exclusive-process lets no process bypass the daemon.",
    ),
];

const MIG: &[KeySchema] = &[
    optional(
        "layout",
        List(&SLICE, 1),
        "The instances of each GPU, as a fixed layout.",
    ),
    optional(
        "dynamic",
        Flag,
        "Instances are created when a pod needs one.",
    ),
    optional(
        "allow",
        List(&Text(text_format::MIG_PROFILE), 1),
        "With dynamic: the only profiles that may be created.",
    ),
    optional(
        "strategy",
        Words(&["mixed", "single", "none"]),
        "Resources of instances: one for each profile, that of whole GPUs for all, or none.",
    ),
];

const SLICE: ValueSchema = Keys(&[
    required(
        "profile",
        Text(text_format::MIG_PROFILE),
        "The MIG profile.",
    ),
    optional(
        "count",
        Whole { least: 1, most: 7 },
        "The number of such instances on each GPU.",
    ),
    optional(
        "on",
        ON,
        "How each instance is shared. Without it one container gets it.",
    ),
]);

/// The JSON schema (draft 2020-12), with a final line break.
pub fn json_schema() -> Result<String, serde_json::Error> {
    let mut schema = CONFIG.json_schema();
    schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    schema["title"] = json!("Aliquot: which GPU is shared in which way");
    Ok(serde_json::to_string_pretty(&schema)? + "\n")
}
