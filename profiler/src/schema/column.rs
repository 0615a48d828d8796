//! Columns, and the macro that declares them together with the row they belong to.

use std::{collections::HashMap, marker::PhantomData};

use arrow::{
    array::ArrayRef,
    datatypes::{DataType, Field},
};

/// How the values of a column behave over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Increase over the interval.
    Counter,
    /// Value at the sample, or a state then.
    Gauge,
    /// Greatest value in the interval.
    Maximum,
    /// Name, identifier or other fact: rows with other labels are of another series.
    Label,
}

impl Kind {
    /// Word in the field metadata.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Maximum => "maximum",
            Self::Label => "label",
        }
    }
}

/// Declaration of one column.
#[derive(Debug)]
pub struct Column {
    /// Name in the Arrow schema.
    pub name: &'static str,
    /// Unit of the values (`ns`, `bytes`, `1` for a plain count); empty for labels.
    pub unit: &'static str,
    /// How the values behave over time.
    pub kind: Kind,
    /// Meaning and origin of the values, in one line.
    pub help: &'static str,
    /// Name of the model that computed the values; empty for measured values.
    pub model: &'static str,
    /// Arrow type.
    pub data_type: fn() -> DataType,
    /// Whether values can be null.
    pub nullable: bool,
}

impl Column {
    /// The Arrow field. Its metadata contains `unit`, `kind`, `help`, and `model` if the values are
    /// computed by a model.
    pub fn field(&self) -> Field {
        let model = (!self.model.is_empty()).then_some(("model", self.model));
        let metadata: HashMap<_, _> = [
            ("unit", self.unit),
            ("kind", self.kind.as_str()),
            ("help", self.help),
        ]
        .into_iter()
        .chain(model)
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
        Field::new(self.name, (self.data_type)(), self.nullable).with_metadata(metadata)
    }
}

/// Reference to the column of a row type `R` whose cells have the type `C`.
///
/// [`columns!`](crate::columns) makes a constant of this type for each column
/// (`UsageRow::user_ns`). Code that reads a batch through it does not compile after the column is
/// renamed or retyped.
#[derive(Debug)]
pub struct ColumnHandle<R, C> {
    index: usize,
    types: PhantomData<fn() -> (R, C)>,
}

impl<R, C> Clone for ColumnHandle<R, C> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R, C> Copy for ColumnHandle<R, C> {}

impl<R: Columns, C> ColumnHandle<R, C> {
    /// The column at `index` of the row type; called only by [`columns!`](crate::columns).
    #[doc(hidden)]
    pub const fn new(index: usize) -> Self {
        Self {
            index,
            types: PhantomData,
        }
    }

    /// Index among the columns of the row type.
    pub const fn index(self) -> usize {
        self.index
    }

    /// Name in the Arrow schema.
    pub const fn name(self) -> &'static str {
        R::COLUMNS[self.index].name
    }
}

/// A struct whose fields are columns; implemented by [`columns!`](crate::columns).
pub trait Columns: Sized + 'static {
    /// Collects rows column by column.
    type Builder: Default;
    /// The columns in order.
    const COLUMNS: &'static [Column];
    /// Adds one row.
    fn append(self, builder: &mut Self::Builder);
    /// Ends the batch: one array per column.
    fn finish(builder: &mut Self::Builder, arrays: &mut Vec<ArrayRef>);
}

/// Declares a row struct, its columns, and a [`ColumnHandle`] for each of them.
///
/// ```
/// profiler::columns! {
///     /// One example.
///     pub struct ExampleRow {
///         read_bytes: u64 = Counter("bytes", "Bytes read"),
///         temperature: Option<f64> = Gauge("°C", "Temperature; null without a sensor"),
///     }
/// }
/// assert_eq!(ExampleRow::temperature.name(), "temperature");
/// ```
#[macro_export]
macro_rules! columns {
    ($(#[$meta:meta])* pub struct $row:ident {
        $($name:ident: $cell:ty = $kind:ident($unit:literal, $help:literal $(, $model:literal)?),)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Debug)]
        pub struct $row {
            $(#[doc = $help] pub $name: $cell,)*
        }

        const _: () = {
            #[expect(non_camel_case_types, reason = "named like the columns")]
            enum Index {
                $($name,)*
            }

            #[expect(non_upper_case_globals, reason = "named like the columns")]
            impl $row {
                $(#[doc = $help] pub const $name: $crate::schema::ColumnHandle<Self, $cell> =
                    $crate::schema::ColumnHandle::new(Index::$name as usize);)*
            }

            #[derive(Default)]
            pub struct Builder {
                $($name: <$cell as $crate::schema::Cell>::Builder,)*
            }

            impl $crate::schema::Columns for $row {
                type Builder = Builder;
                const COLUMNS: &'static [$crate::schema::Column] = &[
                    $($crate::schema::Column {
                        name: stringify!($name),
                        unit: $unit,
                        kind: $crate::schema::Kind::$kind,
                        help: $help,
                        model: [$($model,)? ""][0],
                        data_type: <$cell as $crate::schema::Cell>::data_type,
                        nullable: <$cell as $crate::schema::Cell>::NULLABLE,
                    },)*
                ];
                fn append(self, builder: &mut Builder) {
                    $(<$cell as $crate::schema::Cell>::append(Some(self.$name), &mut builder.$name);)*
                }
                fn finish(
                    builder: &mut Builder,
                    arrays: &mut Vec<::arrow::array::ArrayRef>,
                ) {
                    $(arrays.push(<$cell as $crate::schema::Cell>::finish(&mut builder.$name));)*
                }
            }
        };

        // An unused handle is not dead code.
        const _: () = {
            $(_ = $row::$name;)*
        };
    };
}
