//! W3C PROV in JSON: regions as activities, their inputs and outputs as entities, processes and the
//! user as agents.

use std::{
    collections::{HashMap, HashSet},
    io::Write,
    path::Path,
};

use serde_json::{Map, Value, json};

use super::{
    marks::{self, Mark, named},
    output::failed,
    selection::Selected,
    series::Series,
    spool::Spool,
};
use crate::{
    analysis::{
        rows::{self, ProcessKey, processes},
        stored_run::{StoredHost, StoredRun},
    },
    failure::Failure,
    support::units::rfc3339,
};

/// Kinds of records.
const SECTIONS: [&str; 8] = [
    "entity",
    "activity",
    "agent",
    "used",
    "wasGeneratedBy",
    "wasStartedBy",
    "wasAssociatedWith",
    "actedOnBehalfOf",
];
/// The activity of the whole run, and its agent.
const RUN: &str = "run:run";
const USER: &str = "run:user";

/// Writes the document. `directory` is for temporary files. Returns the files that cannot be read, with
/// the reason.
///
/// # Errors
///
/// When the output cannot be written.
pub fn write(
    series: &Series<'_>,
    directory: &Path,
    output: &mut dyn Write,
) -> Result<Vec<String>, Failure> {
    let run = series.run;
    let mut failures = Vec::new();
    let mut document = Document::new(directory)?;
    document.run(run)?;
    let hosts: Vec<_> = run
        .hosts
        .iter()
        .enumerate()
        .map(|(number, host)| OfHost {
            number,
            run,
            host,
            selected: series.selection.on(run, host, &mut failures),
        })
        .collect();
    let mut texts = Texts::default();
    for host in &hosts {
        host.find_texts(&mut texts, &mut failures)?;
    }
    texts.sort();
    for host in &hosts {
        host.write(&mut document, &texts, &mut failures)?;
    }
    document.write(run, output)?;
    failures.sort_unstable();
    failures.dedup();
    Ok(failures)
}

/// Texts that regions used or generated, such as paths. Equal ones are the same thing, which has a new
/// version whenever a region generates it.
#[derive(Default)]
struct Texts {
    known: HashMap<String, Text>,
}

#[derive(Default)]
struct Text {
    number: usize,
    /// Ends of the regions that generated it, µs, with their identifiers.
    generated: Vec<(i64, String)>,
}

impl Texts {
    fn text(&mut self, text: &str) -> &mut Text {
        if !self.known.contains_key(text) {
            let number = self.known.len() + 1;
            let new = Text {
                number,
                ..Text::default()
            };
            self.known.insert(text.to_owned(), new);
        }
        self.known.entry(text.to_owned()).or_default()
    }

    fn sort(&mut self) {
        for text in self.known.values_mut() {
            text.generated.sort_unstable();
        }
    }

    /// The version that a region used which started at `start`.
    fn used(&self, text: &str, start: i64) -> String {
        let text = &self.known[text];
        let version = text.generated.partition_point(|(end, _)| *end <= start);
        text.version(version)
    }

    /// The version that a region generated.
    fn generated(&self, text: &str, region: &str) -> String {
        let text = &self.known[text];
        let mut regions = text.generated.iter();
        let version = regions.position(|(_, by)| by == region);
        text.version(version.map_or(0, |version| version + 1))
    }
}

impl Text {
    /// 0 is what existed before.
    fn version(&self, version: usize) -> String {
        match version {
            0 => format!("run:data-{}", self.number),
            _ => format!("run:data-{}-{version}", self.number),
        }
    }
}

/// The records, by section.
struct Document {
    sections: Vec<Spool>,
    /// Of records without an identifier of their own.
    number: usize,
    /// Identifiers of texts and agents that have records.
    written: HashSet<String>,
}

impl Document {
    fn new(directory: &Path) -> Result<Self, Failure> {
        let sections = SECTIONS.iter().map(|_| Spool::new(directory));
        Ok(Self {
            sections: sections.collect::<Result<_, _>>().map_err(failed)?,
            number: 0,
            written: HashSet::new(),
        })
    }

    fn add(&mut self, section: &str, id: &str, record: &Value) -> Result<(), Failure> {
        let number = SECTIONS.iter().position(|name| *name == section);
        let spool = &mut self.sections[number.unwrap_or(0)];
        let separator = if spool.is_empty() { "" } else { "," };
        let member = format!("{separator}\n{}: {record}", json!(id));
        spool.put(&member).map(drop).map_err(failed)
    }

    fn relate(&mut self, section: &str, record: &Value) -> Result<(), Failure> {
        self.number += 1;
        let id = format!("_:{}", self.number);
        self.add(section, &id, record)
    }

    /// The run and its user.
    fn run(&mut self, run: &StoredRun) -> Result<(), Failure> {
        let mut activity = json!({"prov:label": run.id(), "prov:type": qualified("profiler:run")});
        let (start, end) = run.start_and_end();
        for (key, time) in [("prov:startTime", start), ("prov:endTime", end)] {
            if let Some(time) = time {
                activity[key] = json!(rfc3339(time));
            }
        }
        let Some(manifest) = run.manifests().next() else {
            return self.add("activity", RUN, &activity);
        };
        activity["profiler:version"] = json!(manifest.version);
        activity["profiler:command"] = json!(manifest.command.join(" "));
        for (key, value) in &manifest.labels.0 {
            activity[format!("label:{key}")] = json!(value);
        }
        self.add("activity", RUN, &activity)?;
        let user = json!({"prov:label": manifest.user, "prov:type": qualified("prov:Person")});
        self.add("agent", USER, &user)?;
        let by = json!({"prov:activity": RUN, "prov:agent": USER});
        self.relate("wasAssociatedWith", &by)
    }

    fn write(self, run: &StoredRun, output: &mut dyn Write) -> Result<(), Failure> {
        let prefixes = json!({
            "run": format!("urn:profiler:run:{}:", run.id()),
            "profiler": "urn:profiler:",
            "label": "urn:profiler:label:",
        });
        write!(output, "{{\n\"prefix\": {prefixes}").map_err(failed)?;
        for (name, records) in SECTIONS.into_iter().zip(self.sections) {
            if records.is_empty() {
                continue;
            }
            write!(output, ",\n\"{name}\": {{").map_err(failed)?;
            records.copy(output).map_err(failed)?;
            write!(output, "\n}}").map_err(failed)?;
        }
        writeln!(output, "\n}}").map_err(failed)
    }
}

struct OfHost<'a> {
    number: usize,
    run: &'a StoredRun,
    host: &'a StoredHost,
    selected: Selected,
}

impl OfHost<'_> {
    /// Identifier of the activity of a mark.
    fn id(&self, number: i64) -> String {
        format!("run:task-{}-{number}", self.number)
    }

    fn find_texts(&self, texts: &mut Texts, failures: &mut Vec<String>) -> Result<(), Failure> {
        marks::for_each(self.run, self.host, &self.selected, failures, |mark| {
            for (_, value) in items(mark.used) {
                if let Value::String(text) = value {
                    texts.text(&text);
                }
            }
            let end = mark.end.unwrap_or(mark.updated);
            for (_, value) in items(mark.generated) {
                if let Value::String(text) = value {
                    let generated = &mut texts.text(&text).generated;
                    generated.push((end, self.id(mark.number)));
                }
            }
            Ok(())
        })
    }

    fn write(
        &self,
        document: &mut Document,
        texts: &Texts,
        failures: &mut Vec<String>,
    ) -> Result<(), Failure> {
        let mut agents = HashSet::new();
        let mut numbers = HashSet::new();
        marks::for_each(self.run, self.host, &self.selected, failures, |mark| {
            agents.insert(mark.process);
            numbers.insert(mark.number);
            Ok(())
        })?;
        self.agents(&agents, document, failures)?;
        marks::for_each(self.run, self.host, &self.selected, failures, |mark| {
            let parent = mark.parent_number.filter(|parent| numbers.contains(parent));
            self.activity(mark, parent, document, texts)
        })
    }

    /// The processes of the marks.
    fn agents(
        &self,
        wanted: &HashSet<ProcessKey>,
        document: &mut Document,
        failures: &mut Vec<String>,
    ) -> Result<(), Failure> {
        let mut commands: HashMap<ProcessKey, [Option<String>; 2]> = HashMap::new();
        let columns = ["pid", "start_ts", "comm", "cmdline"];
        let read = self.run.read("process", self.host, &columns, |batch| {
            let texts = ["comm", "cmdline"].map(|name| rows::Texts::of(batch, name));
            for (row, key) in processes(batch).into_iter().enumerate() {
                if let Some(key) = key.filter(|key| wanted.contains(key)) {
                    let known = texts.each_ref().map(|texts| texts.get(row));
                    commands.insert(key, known.map(|text| text.map(str::to_owned)));
                }
            }
        });
        failures.extend(read.err().into_iter().flatten());
        for key in wanted {
            let id = self.agent(*key);
            let [name, command] = commands.remove(key).unwrap_or_default();
            let mut agent = json!({
                "prov:type": qualified("prov:SoftwareAgent"),
                "profiler:pid": key.0,
                "profiler:host": self.host.name,
            });
            for (key, text) in [("prov:label", name), ("profiler:cmdline", command)] {
                if let Some(text) = text {
                    agent[key] = json!(text);
                }
            }
            document.add("agent", &id, &agent)?;
            if self.run.manifests().next().is_some() {
                let record = json!({"prov:delegate": id, "prov:responsible": USER});
                document.relate("actedOnBehalfOf", &record)?;
            }
        }
        Ok(())
    }

    fn agent(&self, (pid, start): ProcessKey) -> String {
        format!("run:process-{}-{pid}-{start}", self.number)
    }

    fn activity(
        &self,
        mark: Mark,
        parent: Option<i64>,
        document: &mut Document,
        texts: &Texts,
    ) -> Result<(), Failure> {
        let id = self.id(mark.number);
        let mut activity = json!({
            "prov:label": mark.name,
            "prov:type": qualified(&format!("profiler:{}", mark.op)),
            "profiler:host": self.host.name,
        });
        for (key, time) in [("prov:startTime", mark.start), ("prov:endTime", mark.end)] {
            if let Some(time) = time {
                activity[key] = json!(rfc3339(time * 1000));
            }
        }
        for (key, text) in [
            ("profiler:kind", mark.kind.map(Value::from)),
            ("profiler:group", mark.group.map(Value::from)),
            ("profiler:status", mark.status.map(Value::from)),
            ("profiler:tags", mark.tags.map(scalar)),
            ("profiler:attributes", mark.attributes.map(scalar)),
        ] {
            if let Some(text) = text {
                activity[key] = text;
            }
        }
        document.add("activity", &id, &activity)?;
        let by = json!({"prov:activity": id, "prov:agent": self.agent(mark.process)});
        document.relate("wasAssociatedWith", &by)?;
        let starter = parent.map_or_else(|| RUN.to_owned(), |parent| self.id(parent));
        let started = json!({"prov:activity": id, "prov:starter": starter});
        document.relate("wasStartedBy", &started)?;
        let start = mark.start.or(mark.end).unwrap_or(mark.updated);
        for (section, values) in [("used", mark.used), ("wasGeneratedBy", mark.generated)] {
            for (role, value) in items(values) {
                let entity = match &value {
                    Value::String(text) if section == "used" => texts.used(text, start),
                    Value::String(text) => texts.generated(text, &id),
                    _ => {
                        document.number += 1;
                        format!("run:value-{}", document.number)
                    }
                };
                if document.written.insert(entity.clone()) {
                    let record = json!({"prov:value": scalar(value)});
                    document.add("entity", &entity, &record)?;
                }
                let record = json!({"prov:activity": id, "prov:entity": entity, "prov:role": role});
                document.relate(section, &record)?;
            }
        }
        Ok(())
    }
}

/// Values with their names: those of a list have numbers.
fn items(values: Option<Value>) -> Map<String, Value> {
    values.map(named).unwrap_or_default()
}

/// A name with a prefix.
fn qualified(name: &str) -> Value {
    json!({"$": name, "type": "prov:QUALIFIED_NAME"})
}

/// Lists and objects become a text in JSON.
fn scalar(value: Value) -> Value {
    match value {
        Value::Array(_) | Value::Object(_) => Value::from(value.to_string()),
        Value::Null => json!("null"),
        _ => value,
    }
}
