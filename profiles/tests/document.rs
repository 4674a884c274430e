//! Every key is read, written, and in the schema.

use aliquot_profiles::config_schema::json_schema;
use aliquot_profiles::read;

const EVERYTHING: &str = include_str!("everything.yaml");

#[test]
fn configuration_with_every_key_survives_yaml_round_trip() {
    let config = read(EVERYTHING).expect("a good configuration");
    let text = config.to_yaml().expect("YAML");
    assert_eq!(read(&text).expect("its own text"), config, "\n{text}");
}

#[test]
fn schema_in_reference_is_current() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../docs/reference/profiles.schema.json"
    );
    let generated = json_schema().expect("JSON");
    if std::env::var_os("ALIQUOT_WRITE").is_some() {
        std::fs::write(path, &generated).expect("written");
    }
    let found = std::fs::read_to_string(path).expect("docs/reference/profiles.schema.json");
    assert!(
        found == generated,
        "write it anew: ALIQUOT_WRITE=1 cargo test -p aliquot-profiles --test document"
    );
}

#[test]
fn test_configuration_has_every_key_of_schema() {
    let schema: serde_json::Value =
        serde_json::from_str(&json_schema().expect("text")).expect("JSON");
    let mut keys = Vec::new();
    collect(&schema, &mut keys);
    assert!(keys.len() > 40, "{keys:?}");
    for key in keys {
        assert!(EVERYTHING.contains(&format!("{key}:")), "{key}");
    }
}

fn collect(schema: &serde_json::Value, keys: &mut Vec<String>) {
    if let Some(properties) = schema["properties"].as_object() {
        keys.extend(properties.keys().cloned());
    }
    match schema {
        serde_json::Value::Object(map) => map.values().for_each(|v| collect(v, keys)),
        serde_json::Value::Array(all) => all.iter().for_each(|v| collect(v, keys)),
        _ => {}
    }
}
