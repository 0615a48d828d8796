//! The server with a run.

use std::{collections::BTreeSet, fs::File, sync::atomic::AtomicU64};

use crate::{
    failure::{Failure, Reason},
    object_store::{Location, Object, Settings, Store, Web},
};

/// A directory of runs on a server.
pub enum Origin {
    S3(Box<Store>),
    Web(Web),
}

impl Origin {
    /// A directory. Nothing is sent.
    ///
    /// # Errors
    ///
    /// When there are no credentials for S3, or the address is invalid.
    pub fn open(address: &str) -> Result<Self, Failure> {
        if !address.starts_with("s3://") {
            return Ok(Self::Web(Web::new(address)));
        }
        let location: Result<Location, _> = address.parse();
        let location =
            location.map_err(|why| Failure::new(Reason::Usage, format!("{address}: {why}")))?;
        let store = Store::new(location, Settings::of_environment()?)?;
        Ok(Self::S3(Box::new(store)))
    }

    /// The address of an object.
    pub fn name(&self, path: &str) -> String {
        match self {
            Self::S3(store) => store.name(path),
            Self::Web(web) => web.name(path),
        }
    }

    /// The paths of all objects in a directory, below it; `None` if the server does not list them.
    pub fn list(&self, directory: &str) -> Result<Option<BTreeSet<String>>, Failure> {
        match self {
            Self::S3(store) => store.list(directory),
            Self::Web(_) => Ok(None),
        }
    }

    /// Writes the content of an object to a file; `None` if there is no such object.
    pub fn get(
        &self,
        path: &str,
        file: &File,
        limit: u64,
        received: &AtomicU64,
    ) -> Result<Option<Object>, Failure> {
        match self {
            Self::S3(store) => store.get(path, file, limit, received),
            Self::Web(web) => web.get(path, file, limit, received),
        }
    }
}
