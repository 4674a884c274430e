//! The shape of our configuration: every key, what it may hold, what it means.
//!
//! Fed by: nobody. Must not: name a key that [`config`](crate::config) does not
//! read, or leave one out (a test writes every key and reads it back).

use crate::form;
use crate::mode::{MOST_CLIENTS, MOST_SEATS};
use crate::shape::Shape::{Flag, Keys, List, Map, Modes, OneOrMore, Scaling, Text, Whole, Words};
use crate::shape::{Field, Kind, Shape, may, must};

/// The whole file.
pub(crate) const CONFIG: Shape = Keys(&[
    must(
        "apiVersion",
        Text(form::VERSION),
        "The version of this format.",
    ),
    may(
        "default",
        Text(form::NAME),
        "The profile of nodes that choose none. Without it they get vgpu on all cards.",
    ),
    must(
        "profiles",
        Map(form::NAME, &PROFILE),
        "The profiles by name.",
    ),
]);

const PROFILE: Shape = Keys(&[
    may(
        "nodeSelector",
        Map(form::LABEL_KEY, &Text(form::LABEL_VALUE)),
        "Nodes with all these labels have the profile, unless a label names another.",
    ),
    may("gpus", List(&RULE, 0), "Which card has which mode."),
    may(
        "rest",
        MODES,
        "The mode of every card that no entry of gpus selects.",
    ),
    may(
        "transition",
        TRANSITION,
        "What happens to pods on a card whose mode changes.",
    ),
]);

const TRANSITION: Shape = Keys(&[
    may(
        "policy",
        Words(&["wait", "evict"]),
        "Wait until the card's pods have ended, or evict them.",
    ),
    may(
        "timeout",
        Text(form::TIME),
        "The card keeps its old mode if it is not free by then. Without it there is no such end.",
    ),
]);

const RULE: Shape = Modes {
    common: &[
        must(
            "select",
            SELECT,
            "The cards: those that every key here selects.",
        ),
        may(
            "optional",
            Flag,
            "That no card of a node is selected is right.",
        ),
        may(
            "reserve",
            List(&RESERVE, 1),
            "What of each card only pods of some namespaces are given.",
        ),
    ],
    kinds: KINDS,
    bare: false,
};

const RESERVE: Shape = Keys(&[
    may(
        "profile",
        Text(form::MIG_PROFILE),
        "Instances of this MIG profile. Without it the whole card, with all that is on it.",
    ),
    may(
        "count",
        Whole { least: 1, most: 7 },
        "So many of them. Without it one.",
    ),
    must(
        "namespaces",
        List(&Text(form::NAMESPACE), 1),
        "The namespaces whose pods are given them.",
    ),
]);

const SELECT: Shape = Keys(&[
    may("all", Flag, "Every card. Only true, and alone."),
    may(
        "index",
        OneOrMore(&Whole {
            least: 0,
            most: 1023,
        }),
        "NVML's index.",
    ),
    may("uuid", OneOrMore(&Text(form::UUID)), "The card's uuid."),
    may(
        "pci",
        OneOrMore(&Text(form::PCI)),
        "The card's PCI address, or the PCI device id of its model.",
    ),
    may(
        "product",
        OneOrMore(&Text(form::GLOB)),
        "The driver's name of the model; * and ? stand for others.",
    ),
]);

const MODES: Shape = Modes {
    common: &[],
    kinds: KINDS,
    bare: true,
};

const KINDS: &[Kind] = &[
    Kind {
        name: "vgpu",
        fields: VGPU,
    },
    Kind {
        name: "exclusive",
        fields: &[RENAME],
    },
    Kind {
        name: "timeslice",
        fields: TIMESLICE,
    },
    Kind {
        name: "mps",
        fields: MPS,
    },
    Kind {
        name: "mig",
        fields: MIG,
    },
    Kind {
        name: "unmanaged",
        fields: &[],
    },
];

const ON: Shape = Modes {
    common: &[],
    kinds: &[
        Kind {
            name: "vgpu",
            fields: VGPU,
        },
        Kind {
            name: "timeslice",
            fields: TIMESLICE,
        },
        Kind {
            name: "mps",
            fields: MPS,
        },
    ],
    bare: true,
};

const RENAME: Field = may(
    "rename",
    Text(form::RESOURCE),
    "The resource that pods ask for, in place of the usual one.",
);
const STRICT: Field = may(
    "strict",
    Flag,
    "A container that asks for more than one is refused.",
);

const VGPU: &[Field] = &[
    may(
        "split",
        Whole {
            least: 1,
            most: MOST_SEATS,
        },
        "Shares that the card can carry at once. Without it the node's deviceSplitCount.",
    ),
    may(
        "memoryScaling",
        Scaling,
        "Memory that is promised, as a multiple of the card's. Without it the node's deviceMemoryScaling.",
    ),
    may(
        "graphics",
        Flag,
        "Containers also get what of the driver draws (OpenGL, Vulkan, OptiX). What they do with it is not limited.",
    ),
    may(
        "video",
        Flag,
        "Containers also get what of the driver encodes and decodes video. What they do with it is not limited.",
    ),
];

const TIMESLICE: &[Field] = &[
    must(
        "replicas",
        Whole {
            least: 2,
            most: MOST_SEATS,
        },
        "Containers that take turns.",
    ),
    RENAME,
    STRICT,
    may(
        "sliceLength",
        Words(&["default", "short", "medium", "long"]),
        "How long a turn is, where the driver lets one say.",
    ),
];

const MPS: &[Field] = &[
    must(
        "replicas",
        Whole {
            least: 1,
            most: MOST_CLIENTS,
        },
        "Containers at once.",
    ),
    RENAME,
    STRICT,
    may(
        "memory",
        Words(&["even", "full"]),
        "What a container may use that asks for no memory: an equal part, or all.",
    ),
    may("threads", Words(&["even", "full"]), "The same for compute."),
    may(
        "computeMode",
        Words(&["exclusive-process", "default"]),
        "The card's compute mode meanwhile; exclusive-process lets nobody past the daemon.",
    ),
];

const MIG: &[Field] = &[
    may(
        "layout",
        List(&SLICE, 1),
        "The instances of each card, made once.",
    ),
    may("dynamic", Flag, "Instances are made when a pod needs one."),
    may(
        "allow",
        List(&Text(form::MIG_PROFILE), 1),
        "With dynamic: the only profiles that may be made.",
    ),
    may(
        "strategy",
        Words(&["mixed", "single", "none"]),
        "Names of instances: each profile its own resource, all as whole cards, or none offered.",
    ),
];

const SLICE: Shape = Keys(&[
    must("profile", Text(form::MIG_PROFILE), "The MIG profile."),
    may(
        "count",
        Whole { least: 1, most: 7 },
        "So many of it on each card.",
    ),
    may(
        "on",
        ON,
        "How each instance is shared. Without it one container has it.",
    ),
]);
