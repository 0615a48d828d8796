//! A layer for [`tracing_subscriber`]: spans become regions.

use std::fmt::Debug;

use tracing_core::{
    Event, Field, Level, Subscriber,
    field::Visit,
    span::{Attributes, Id, Record},
};
use tracing_subscriber::{
    layer::{Context, Layer},
    registry::LookupSpan,
};

use crate::{
    json::Value,
    mark::{Mark, Once, RegionId, enabled, event, region},
};

/// Marks each span as a region, from its creation to its close.
///
/// The region has the fields of the span as attributes, those recorded later included, and the region
/// of the parent span as its parent. Its status is `error` if an event of level `ERROR` occurred
/// directly in the span, for example that of `#[instrument(err)]`. A span that is entered and left many
/// times, as in asynchronous code, is one region.
///
/// A region of less than 5 ms has no usage of its own, and there is a limit of marks per second: select
/// the spans with a filter of [`tracing_subscriber`].
///
/// ```
/// use profiler_mark::tracing::MarkLayer;
/// use tracing_subscriber::layer::SubscriberExt as _;
///
/// let subscriber = tracing_subscriber::registry().with(MarkLayer::new());
/// tracing::subscriber::with_default(subscriber, || {
///     let _fit = tracing::info_span!("fit", epochs = 3).entered();
/// });
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[must_use]
pub struct MarkLayer {
    events: bool,
}

impl MarkLayer {
    /// A layer that marks spans.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether events are marked as well. Their name is their message.
    pub fn with_events(mut self, events: bool) -> Self {
        self.events = events;
        self
    }
}

/// The region of a span.
struct Open {
    id: RegionId,
    /// Its end, with the fields recorded so far.
    end: Mark<Once>,
    failed: bool,
}

impl<S: Subscriber + for<'lookup> LookupSpan<'lookup>> Layer<S> for MarkLayer {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id).filter(|_| enabled()) else {
            return;
        };
        let metadata = attributes.metadata();
        let mut start = region(metadata.name()).attr("target", metadata.target());
        let mut outer = span.scope().skip(1);
        let parent = outer.find_map(|span| span.extensions().get::<Open>().map(|open| open.id));
        if let Some(parent) = parent {
            start = start.parent(parent);
        }
        attributes.record(&mut Fields(&mut start));
        if let Some(id) = start.start_unscoped() {
            span.extensions_mut().insert(Open {
                id,
                end: Mark::end(id),
                failed: false,
            });
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(open) = span.extensions_mut().get_mut::<Open>()
        {
            values.record(&mut Fields(&mut open.end));
        }
    }

    fn on_event(&self, happened: &Event<'_>, context: Context<'_, S>) {
        if !enabled() {
            return;
        }
        let metadata = happened.metadata();
        let mut parent = None;
        if let Some(span) = context.event_span(happened)
            && let Some(open) = span.extensions_mut().get_mut::<Open>()
        {
            open.failed |= *metadata.level() == Level::ERROR;
            parent = Some(open.id);
        }
        if self.events {
            let mut message = Message::default();
            happened.record(&mut message);
            let name = message.0.as_deref().filter(|text| !text.is_empty());
            let mut mark = event(name.unwrap_or(metadata.name()))
                .attr("target", metadata.target())
                .attr("level", metadata.level().as_str());
            if let Some(parent) = parent {
                mark = mark.parent(parent);
            }
            happened.record(&mut Fields(&mut mark));
            mark.send();
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        if let Some(span) = context.span(&id)
            && let Some(open) = span.extensions_mut().remove::<Open>()
        {
            if open.failed {
                open.end.status("error")
            } else {
                open.end
            }
            .send();
        }
    }
}

/// Name of the field with the message of an event.
const MESSAGE: &str = "message";

/// Adds fields as attributes.
struct Fields<'a, State>(&'a mut Mark<State>);

impl<State> Fields<'_, State> {
    fn add<'a>(&mut self, field: &Field, value: impl Into<Value<'a>>) {
        if field.name() != MESSAGE {
            self.0.add_attr(field.name(), value.into());
        }
    }
}

impl<State> Visit for Fields<'_, State> {
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.add(field, &format!("{value:?}"));
    }
}

/// The message of an event.
#[derive(Default)]
struct Message(Option<String>);

impl Visit for Message {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == MESSAGE {
            self.0 = Some(value.to_owned());
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == MESSAGE {
            self.0 = Some(format!("{value:?}"));
        }
    }
}
