//! Regions, events, phases and gauges.

use std::{
    marker::PhantomData,
    num::NonZeroU64,
    ptr,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    thread,
    time::Duration,
};

use crate::{
    json::{Value, write_text},
    socket::client,
};

/// The profiler ignores larger marks. The rest is for what [`Mark::send`] adds.
const MAX_BYTES: usize = (8 << 10) - 64;

/// Longer names, groups, kinds and statuses are cut.
const MAX_TEXT: usize = 255;

/// Whether a profiler receives marks. Skip costly preparation of attributes if not.
#[must_use]
pub fn enabled() -> bool {
    client().is_some()
}

/// A region that is to be started.
pub fn region(name: &str) -> Mark<Start> {
    Mark::new("start", Some(name))
}

/// A moment without duration.
pub fn event(name: &str) -> Mark<Once> {
    Mark::new("event", Some(name))
}

/// A region that ends now and took this long.
///
/// ```
/// # use std::time::Instant;
/// let begin = Instant::now();
/// // …
/// profiler_mark::phase("compile", begin.elapsed()).send();
/// ```
pub fn phase(name: &str, duration: Duration) -> Mark<Once> {
    let mut mark = Mark::new("phase", Some(name));
    mark.member("seconds", duration.as_secs_f64().into());
    mark
}

/// The current value of a quantity. The unit can be empty. A value that is not finite is ignored.
pub fn gauge(name: &str, value: f64, unit: &str) -> Mark<Once> {
    let mut mark = Mark::new("gauge", Some(name));
    if !value.is_finite() {
        mark.parts = None;
    }
    mark.member("value", value.into());
    if !unit.is_empty() {
        mark.member("unit", cut(unit).into());
    }
    mark
}

/// Identifies a region within its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RegionId(NonZeroU64);

impl RegionId {
    fn new() -> Self {
        static REGIONS: AtomicU32 = AtomicU32::new(1);
        // The address tells regions of this crate from those of other copies and of clients in
        // other languages.
        let own = ptr::from_ref(&REGIONS).addr() as u64 >> 2 << 32;
        let number = u64::from(REGIONS.fetch_add(1, Relaxed));
        Self(NonZeroU64::new(own | number).unwrap_or(NonZeroU64::MIN))
    }
}

/// State of a [`Mark`]: it starts a region.
#[derive(Clone, Copy, Debug)]
pub enum Start {}

/// State of a [`Mark`]: it can be sent.
#[derive(Clone, Copy, Debug)]
pub enum Once {}

/// A mark that has not been sent: the methods add details.
///
/// A detail that does not fit into the 8 KiB of a mark is left out.
#[must_use = "call `start` or `send`"]
#[derive(Debug)]
pub struct Mark<State> {
    /// Nothing without a profiler.
    parts: Option<Parts>,
    state: PhantomData<State>,
}

/// JSON without the closing braces and brackets.
#[derive(Debug)]
struct Parts {
    members: String,
    attributes: String,
    tags: String,
    used: String,
    generated: String,
}

impl Parts {
    fn bytes(&self) -> usize {
        let lists = [&self.attributes, &self.tags, &self.used, &self.generated];
        lists
            .into_iter()
            .fold(self.members.len(), |sum, part| sum + part.len())
    }

    /// Adds to a part, if this fits.
    fn add(&mut self, part: fn(&mut Self) -> &mut String, add: impl FnOnce(&mut String)) {
        let before = part(self).len();
        add(part(self));
        if self.bytes() > MAX_BYTES {
            part(self).truncate(before);
        }
    }

    fn list(&mut self, part: fn(&mut Self) -> &mut String, item: &str) {
        self.add(part, |list| {
            if !list.is_empty() {
                list.push(',');
            }
            write_text(list, item);
        });
    }

    /// The mark without its closing brace.
    fn finish(self) -> String {
        let mut json = self.members;
        for (before, part, after) in [
            (r#","attrs":{"#, self.attributes, '}'),
            (r#","tags":["#, self.tags, ']'),
            (r#","used":["#, self.used, ']'),
            (r#","generated":["#, self.generated, ']'),
        ] {
            if !part.is_empty() {
                json += before;
                json += &part;
                json.push(after);
            }
        }
        json
    }
}

impl<State> Mark<State> {
    fn new(op: &str, name: Option<&str>) -> Self {
        let parts = enabled().then(|| Parts {
            members: format!(r#"{{"op":"{op}""#),
            attributes: String::new(),
            tags: String::new(),
            used: String::new(),
            generated: String::new(),
        });
        let mut mark = Self {
            parts,
            state: PhantomData,
        };
        if let Some(name) = name {
            mark.member("name", cut(name).into());
        }
        mark
    }

    fn member(&mut self, name: &str, value: Value<'_>) {
        if let Some(parts) = &mut self.parts {
            parts.add(
                |parts| &mut parts.members,
                |json| {
                    json.push(',');
                    write_text(json, name);
                    json.push(':');
                    value.write(json);
                },
            );
        }
    }

    pub(crate) fn add_attr(&mut self, name: &str, value: Value<'_>) {
        if let Some(parts) = &mut self.parts {
            parts.add(
                |parts| &mut parts.attributes,
                |json| {
                    if !json.is_empty() {
                        json.push(',');
                    }
                    write_text(json, name);
                    json.push(':');
                    value.write(json);
                },
            );
        }
    }

    /// An attribute.
    pub fn attr<'a>(mut self, name: &str, value: impl Into<Value<'a>>) -> Self {
        self.add_attr(name, value.into());
        self
    }

    /// The enclosing region.
    pub fn parent(mut self, region: RegionId) -> Self {
        self.member("parent", region.0.get().into());
        self
    }

    /// The group that it belongs to, for example a training run.
    pub fn group(mut self, group: &str) -> Self {
        self.member("group", cut(group).into());
        self
    }

    /// The kind of region or event: epoch, checkpoint.
    pub fn kind(mut self, kind: &str) -> Self {
        self.member("kind", cut(kind).into());
        self
    }

    /// The result: `finished` (default), `error`, or other text.
    pub fn status(mut self, status: &str) -> Self {
        self.member("status", cut(status).into());
        self
    }

    /// A keyword; can be repeated.
    pub fn tag(mut self, tag: &str) -> Self {
        if let Some(parts) = &mut self.parts {
            parts.list(|parts| &mut parts.tags, tag);
        }
        self
    }

    /// An input, for example a file; can be repeated.
    pub fn used(mut self, input: &str) -> Self {
        if let Some(parts) = &mut self.parts {
            parts.list(|parts| &mut parts.used, input);
        }
        self
    }

    /// An output; can be repeated.
    pub fn generated(mut self, output: &str) -> Self {
        if let Some(parts) = &mut self.parts {
            parts.list(|parts| &mut parts.generated, output);
        }
        self
    }

    fn emit(self) {
        if let (Some(parts), Some(client)) = (self.parts, client()) {
            client.send(parts.finish());
        }
    }
}

impl Mark<Once> {
    pub(crate) fn end(id: RegionId) -> Self {
        let mut mark = Self::new("end", None);
        mark.member("id", id.0.get().into());
        mark
    }

    /// Sends the mark.
    pub fn send(self) {
        self.emit();
    }
}

impl Mark<Start> {
    /// Starts the region, which lasts until the value is dropped, in whichever thread.
    pub fn start(self) -> Region {
        Region {
            id: self.start_unscoped(),
        }
    }

    /// Starts the region; `None` without a profiler.
    pub(crate) fn start_unscoped(mut self) -> Option<RegionId> {
        self.parts.as_ref()?;
        let id = RegionId::new();
        self.member("id", id.0.get().into());
        self.emit();
        Some(id)
    }
}

/// An open region. It ends when it is dropped, with status `error` during a panic.
#[must_use = "the region ends when this is dropped"]
#[derive(Debug)]
pub struct Region {
    id: Option<RegionId>,
}

impl Region {
    /// Its id; `None` without a profiler.
    #[must_use]
    pub fn id(&self) -> Option<RegionId> {
        self.id
    }

    /// A region within this one.
    pub fn region(&self, name: &str) -> Mark<Start> {
        let mark = region(name);
        match self.id {
            Some(id) => mark.parent(id),
            None => mark,
        }
    }

    /// Ends the region with details, once the returned mark is sent.
    ///
    /// ```
    /// let region = profiler_mark::region("fit").start();
    /// region.end().status("error").attr("loss", f64::INFINITY).send();
    /// ```
    pub fn end(mut self) -> Mark<Once> {
        match self.id.take() {
            Some(id) => Mark::end(id),
            None => Mark {
                parts: None,
                state: PhantomData,
            },
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            let mark = Mark::end(id);
            let failed = thread::panicking();
            if failed { mark.status("error") } else { mark }.send();
        }
    }
}

/// The longest beginning of a text that a mark has room for.
fn cut(text: &str) -> &str {
    let mut ends = (0..=text.len().min(MAX_TEXT)).rev();
    let end = ends.find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}
