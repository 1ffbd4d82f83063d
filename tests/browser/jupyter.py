"""Starting JupyterLab and driving a notebook in it."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from urllib.error import URLError
from urllib.request import urlopen

import nbformat
from playwright.sync_api import Browser, ConsoleMessage, Page

REPOSITORY = Path(__file__).parents[2]
PATIENCE = 60  # seconds for whatever should take a few; a busy machine is slow
SETTINGS = {
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "notebook-extension/tracker": {"windowingMode": "none"},  # all cells are in the page, seen or not
}


class LabServer:
    """JupyterLab on a free port of this machine, to be used in a `with` block."""

    def __init__(self, folder: Path) -> None:
        self.notebooks = folder / "notebooks"
        self._folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> "LabServer":
        self.notebooks.mkdir()
        for name, values in SETTINGS.items():
            path = self._folder / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(values))
        self._log = (self._folder / "server.log").open("w")
        self._process = subprocess.Popen(
            self._command(), cwd=self.notebooks, env=self._environment(), stdout=self._log, stderr=self._log
        )
        self._wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A server with open connections may take its time; its kernels end with it either way.
        self._process.terminate()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _command(self) -> list[str]:
        options = [
            "--no-browser",
            "--allow-root",
            "--ServerApp.ip=127.0.0.1",
            f"--ServerApp.port={self._port}",
            "--ServerApp.port_retries=0",
            f"--ServerApp.root_dir={self.notebooks}",
            "--IdentityProvider.token=",
            "--LabApp.expose_app_in_browser=True",
        ]
        return [sys.executable, "-m", "jupyterlab", *options]

    def _environment(self) -> dict[str, str]:
        folders = {
            "JUPYTER_CONFIG_DIR": "config",
            "JUPYTER_DATA_DIR": "data",
            "JUPYTER_RUNTIME_DIR": "runtime",
            "JUPYTERLAB_SETTINGS_DIR": "settings",
            "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
            "IPYTHONDIR": "ipython",
        }
        own = {name: str(self._folder / folder) for name, folder in folders.items()}
        path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
        return {**os.environ, **own, "PYTHONPATH": path}

    def _wait(self) -> None:
        limit = time.monotonic() + PATIENCE
        while time.monotonic() < limit and self._process.poll() is None:
            try:
                with urlopen(f"{self.url}/api/status", timeout=5):
                    return
            except (URLError, TimeoutError):
                time.sleep(0.2)
        raise RuntimeError(f"JupyterLab did not start: {(self._folder / 'server.log').read_text()[-2000:]}")


class Lab:
    """One browser page on the server."""

    def __init__(self, browser: Browser, server: LabServer) -> None:
        self.server = server
        self._context = browser.new_context(viewport={"width": 1280, "height": 1400})
        self.page: Page = self._context.new_page()
        self.page.set_default_timeout(PATIENCE * 1000)
        self._errors: list[str] = []
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self._errors.append(str(error)))

    def open(self, notebook: Path) -> Page:
        """Open a copy of this notebook and wait for its kernel."""
        shutil.copy(notebook, self.server.notebooks / notebook.name)
        self.page.goto(f"{self.server.url}/lab/tree/{notebook.name}?reset")
        # The indicator says idle before the page has its line to the kernel, and what is run then is lost.
        self.page.wait_for_function(
            """() => {
                const kernel = window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel;
                return kernel?.connectionStatus === 'connected' && kernel.status === 'idle';
            }"""
        )
        self.page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status=idle]")
        self.page.evaluate("() => window.jupyterapp.shell.collapseLeft()")
        return self.page

    def open_cells(self, name: str, *cells: str) -> Page:
        """Open a new notebook with these code cells."""
        path = self.server.notebooks / f"{name}.source"
        path.mkdir(exist_ok=True)
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        notebook.metadata["kernelspec"] = {
            "name": "python3",
            "display_name": "Python 3",
            "language": "python",
        }
        nbformat.write(notebook, path / f"{name}.ipynb")
        return self.open(path / f"{name}.ipynb")

    def run_all(self) -> None:
        """Run every cell. AssertionError with its traceback if one fails."""
        self.command("notebook:run-all-cells")
        self.page.wait_for_function(
            """() => document.querySelector('[data-mime-type="application/vnd.jupyter.stderr"]') ||
                [...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')]
                    .every((prompt) => /\\d/.test(prompt.textContent))"""
        )
        failed = self.page.locator('.jp-OutputArea-output[data-mime-type="application/vnd.jupyter.stderr"]')
        assert failed.count() == 0, failed.first.inner_text()

    def command(self, name: str, **arguments: object) -> None:
        """Start a command of JupyterLab, without waiting for its promise: some stay open for long."""
        self.page.evaluate(
            "([name, args]) => { window.jupyterapp.commands.execute(name, args); }", [name, arguments]
        )

    def resize(self, width: int, height: int) -> None:
        """Change the window, and wait until JupyterLab has laid the notebook out in it: it does so later."""
        self.page.set_viewport_size({"width": width, "height": height})
        self.page.wait_for_function(
            """async () => {
                const { node } = window.jupyterapp.shell.currentWidget;
                const edges = () => node.querySelector('.jp-WindowedPanel-outer').getBoundingClientRect();
                const frame = () => new Promise((resolve) => requestAnimationFrame(resolve));
                const before = edges();
                await frame();
                await frame();
                const { right, bottom } = edges();
                return right === before.right && bottom === before.bottom
                    && right <= window.innerWidth && bottom <= window.innerHeight;
            }"""
        )

    def theme(self, name: str) -> None:
        """Change to "JupyterLab Light" or "JupyterLab Dark"."""
        self.command("apputils:change-theme", theme=name)
        light = "true" if name.endswith("Light") else "false"
        self.page.wait_for_selector(f'body[data-jp-theme-light="{light}"]', state="attached")

    def close(self) -> list[str]:
        """Close the page; the errors that were on its console."""
        self._context.close()
        return self._errors

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self._errors.append(f"{message.text} ({message.location.get('url', '')})")
