# CPack runs this on the installed tree: what a Debian package has elsewhere, and the texts of the linked libraries' licenses.
set(usr ${CPACK_TEMPORARY_INSTALL_DIRECTORY}/usr)
# Debian's zsh does not look into site-functions.
file(RENAME ${usr}/share/zsh/site-functions ${usr}/share/zsh/vendor-completions)
execute_process(COMMAND ${CPACK_TASKD_LICENSES} ${usr}/share/doc/taskd/licenses COMMAND_ERROR_IS_FATAL ANY)
file(COPY_FILE ${usr}/share/doc/taskd/licenses/README.txt ${usr}/share/doc/taskd/copyright)
file(GLOB pages ${usr}/share/man/man1/*.1)
execute_process(COMMAND gzip -9n ${pages} COMMAND_ERROR_IS_FATAL ANY)
# Whatever the umask is.
execute_process(COMMAND chmod -R u=rwX,go=rX ${usr} COMMAND_ERROR_IS_FATAL ANY)
